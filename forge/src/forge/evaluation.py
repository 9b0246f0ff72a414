"""Judging one policy version on the held-out problems, greedily and by sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forge.environments import Problem
from forge.metrics import solved_share
from forge.samples import Sample
from forge.workers import Workers

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Shares of the problems solved by `version`, at temperature 0 and as it is sampled for training."""

    version: int
    greedy: float
    sampled: float
    rollouts: list[Sample]  # the greedy ones, in the order of the problems

    def metrics(self) -> dict[str, float]:
        """As they go into metrics.jsonl."""
        return {"eval/greedy": self.greedy, "eval/sampled": self.sampled, "eval/version": float(self.version)}


async def evaluate(workers: Workers, problems: Sequence[Problem]) -> Evaluation:
    """Evaluate the version that all generators hold; raises `SyncError` if one of them holds another."""
    version = workers.version
    greedy = await workers.evaluate(problems, greedy=True)
    sampled = await workers.evaluate(problems, greedy=False)
    return Evaluation(version, solved_share(greedy), solved_share(sampled), greedy)
