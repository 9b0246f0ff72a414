"""Sorting digits: "352174=" is to be completed by "123457"."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from forge.environments import Policy, Problem
from forge.errors import ConfigError
from forge.rewards import PlacesReward
from forge.samples import Episode

__all__ = ["SortTask"]

HELD_OUT_SEED = 20_000


@dataclass(frozen=True, slots=True)
class SortTask:
    """`held_out_size` of the 10**digits prompts are set aside by a fixed seed; training draws from all the others."""

    digits: int = 6
    held_out_size: int = 256
    reward: PlacesReward = field(default_factory=PlacesReward)
    alphabet: str = "0123456789="

    def __post_init__(self) -> None:
        if self.digits < 1 or not 0 < self.held_out_size < 10**self.digits:
            raise ConfigError(
                f"{self.digits} digits with {self.held_out_size} problems held out leave nothing to train on; "
                "hold out fewer than 10**digits",
                key="task.options",
            )

    def problems(self, seed: int) -> Iterator[Problem]:
        """Training problems without end, uniform over the prompts that are not held out."""
        draw, apart = random.Random(seed), {problem.prompt for problem in self.held_out()}
        while True:
            problem = self._problem(draw.randrange(10**self.digits))
            if problem.prompt not in apart:
                yield problem

    def held_out(self) -> list[Problem]:
        """The problems to judge by: the same ones in every run."""
        numbers = random.Random(HELD_OUT_SEED).sample(range(10**self.digits), self.held_out_size)
        return [self._problem(number) for number in numbers]

    async def rollout(self, problem: Problem, policy: Policy) -> Episode:
        """One turn; partly right places earn a part of the reward."""
        completion = await policy.generate(policy.tokenizer.encode(problem.prompt))
        text = policy.tokenizer.decode(completion.token_ids)
        return Episode([completion], self.reward.parts(text, problem.answer), text == problem.answer, text)

    def _problem(self, number: int) -> Problem:
        digits = f"{number:0{self.digits}}"
        return Problem(f"{digits}=", "".join(sorted(digits)))
