"""What a task is: problems to train and to judge by, and an async episode of one problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from forge.errors import ConfigError
from forge.samples import Episode

if TYPE_CHECKING:
    from forge.generation import Completion
    from forge.tokenizer import Tokenizer

__all__ = ["BUILT_IN", "Environment", "Policy", "Problem", "find"]

BUILT_IN = {"sort": "forge.tasks.sort:SortTask"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt and its right answer; supervised fine-tuning learns the answer as the completion."""

    prompt: str
    answer: str = ""


class Policy(Protocol):
    """The policy as an environment sees it."""

    tokenizer: Tokenizer

    async def generate(self, prompt_ids: Sequence[int]) -> Completion:
        """Sample one completion; whatever is asked for at the same time is computed in one batch."""
        ...


class Environment(Protocol):
    """A task, written as a plain class; one instance lives beside each generator and one in the recipe."""

    alphabet: str  # the characters of its texts, for models with a character tokenizer; "" if it needs a real one

    def problems(self, seed: int) -> Iterator[Problem]:
        """Training problems without end; equal seeds give equal problems."""
        ...

    def held_out(self) -> Sequence[Problem]:
        """Problems to judge by, always the same ones, none of which `problems` ever gives."""
        ...

    async def rollout(self, problem: Problem, policy: Policy) -> Episode:
        """Let `policy` work on `problem`, in one turn or in many, and say what it earned."""
        ...


def find(name: str, options: Mapping[str, object]) -> Environment:
    """The environment of a name ("sort") or of a class of the user's own ("package.module:Class")."""
    module, colon, attribute = BUILT_IN.get(name, name).partition(":")
    if not colon:
        known = ", ".join(BUILT_IN)
        raise ConfigError(f'task {name!r} is not one of {known}; give "package.module:Class" for your own', key="task")
    return cast("Environment", getattr(import_module(module), attribute)(**options))
