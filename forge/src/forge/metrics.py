"""The metrics of a step, by the names people know, and a stopwatch for where its time went."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from forge.samples import NO_VERSION, Sample

__all__ = ["Stopwatch", "rollout_metrics", "solved_share"]


def rollout_metrics(samples: Sequence[Sample], version: int) -> dict[str, float]:
    """Rewards, shares and policy ages of the samples that a step trains from `version`; NaN rewards are left out."""
    rewards = [sample.reward for sample in samples if not math.isnan(sample.reward)]
    ages = [version - written for sample in samples for written in sample.versions if written != NO_VERSION]
    lengths = [sample.completion_tokens for sample in samples]
    return {
        "reward/mean": _mean(rewards),
        "reward/std": statistics.pstdev(rewards) if rewards else 0.0,
        "reward/unscorable_share": 1 - len(rewards) / len(samples),
        "solved": solved_share(samples),
        "zero_variance_share": _zero_variance_share(samples),
        "truncation_share": _mean([sample.truncated for sample in samples]),
        "completion_tokens/mean": _mean(lengths),
        "policy_age/min": float(min(ages)),
        "policy_age/mean": _mean(ages),
        "policy_age/max": float(max(ages)),
        **_parts(samples),
    }


def solved_share(samples: Sequence[Sample]) -> float:
    """Share of the samples that solved their problem."""
    return _mean([sample.solved is True for sample in samples])


def _zero_variance_share(samples: Sequence[Sample]) -> float:
    """Share of the groups from which nothing can be learnt: all rewards equal, or none scorable."""
    groups: dict[int, set[float]] = {}
    for sample in samples:
        seen = groups.setdefault(sample.group, set())
        if not math.isnan(sample.reward):
            seen.add(sample.reward)
    return _mean([len(seen) < 2 for seen in groups.values()])


def _parts(samples: Sequence[Sample]) -> dict[str, float]:
    names = dict.fromkeys(name for sample in samples for name in sample.parts)
    values = {name: [part for sample in samples if (part := sample.parts.get(name)) is not None] for name in names}
    return {f"reward/{name}": _mean(parts) for name, parts in values.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


class Stopwatch:
    """Adds up seconds under names, until they are taken."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Count what the block takes as `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """Seconds under each name since the last take, as `time/<name>`, and the whole as `time/step`."""
        now = time.perf_counter()
        seconds = {f"time/{name}": value for name, value in self._seconds.items()} | {"time/step": now - self._last}
        self._seconds, self._last = {}, now
        return seconds
