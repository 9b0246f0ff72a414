"""A sample: the tokens of one episode, each with its log-probability, policy version and source from the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from forge.errors import EpisodeError

if TYPE_CHECKING:
    from forge.generation import Completion

__all__ = ["Episode", "Sample", "Source", "sample_from"]

NO_VERSION = -1


class Source(IntEnum):
    """Who wrote a token; only what the policy wrote is trained."""

    PROMPT = 0
    POLICY = 1
    ENVIRONMENT = 2


@dataclass(frozen=True, slots=True)
class Episode:
    """What an environment makes of one problem: the policy's turns and what they earned.

    Each turn's `prompt_ids` begin with all tokens of the turns before it, exactly as they were sampled; what comes
    after those is the environment's. `rewards` are named parts whose sum is the reward; a part that is None makes the
    episode not scorable. `solved` says whether the problem was, None where that has no meaning. `text` is what a
    reader is shown as the answer.
    """

    turns: Sequence[Completion]
    rewards: Mapping[str, float | None]
    solved: bool | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One episode as tokens, all four sequences equally long; masks come from `sources` and lengths alone.

    `logprobs` are 0.0 and `versions` -1 where the policy did not write the token. `reward` is NaN where not scorable.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    sources: tuple[int, ...]
    reward: float
    group: int
    truncated: bool = False
    solved: bool | None = None
    prompt: str = ""
    text: str = ""
    parts: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def completion_tokens(self) -> int:
        """How many tokens the policy wrote."""
        return self.sources.count(Source.POLICY)

    @property
    def version(self) -> int:
        """The oldest policy version that wrote a token of this sample."""
        return min((version for version in self.versions if version != NO_VERSION), default=NO_VERSION)


def sample_from(episode: Episode, *, group: int, prompt: str = "") -> Sample:
    """The sample of an episode; raises `EpisodeError` where a turn's prompt rewrites the turns before it."""
    if not episode.turns:
        raise EpisodeError("the episode has no turns; an environment must let the policy generate at least once")
    token_ids: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    sources: list[int] = []
    for number, turn in enumerate(episode.turns):
        new = _continuation(token_ids, turn.prompt_ids, number)
        written = len(turn.token_ids)
        token_ids += [*new, *turn.token_ids]
        logprobs += [0.0] * len(new) + list(turn.logprobs)
        versions += [NO_VERSION] * len(new) + list(turn.versions)
        sources += [int(Source.ENVIRONMENT if number else Source.PROMPT)] * len(new) + [int(Source.POLICY)] * written
    return Sample(
        tuple(token_ids),
        tuple(logprobs),
        tuple(versions),
        tuple(sources),
        reward=_total(episode.rewards),
        group=group,
        truncated=episode.turns[-1].finish_reason == "length",
        solved=episode.solved,
        prompt=prompt,
        text=episode.text,
        parts=dict(episode.rewards),
    )


def _continuation(before: list[int], prompt_ids: Sequence[int], number: int) -> Sequence[int]:
    """What a turn's prompt adds to the tokens there already are."""
    if list(prompt_ids[: len(before)]) != before:
        raise EpisodeError(
            f"the prompt of turn {number + 1} does not begin with the {len(before)} tokens of the turns before it; "
            "feed back the sampled token ids rather than a template that edits history",
            turn=number + 1,
        )
    return prompt_ids[len(before) :]


def _total(rewards: Mapping[str, float | None]) -> float:
    return sum(float("nan") if part is None else float(part) for part in rewards.values())
