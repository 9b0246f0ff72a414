"""The supervised start of a reinforcement run: fine-tune on right answers until some problems are solved."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from forge.config import WarmUpConfig
from forge.environments import Problem
from forge.metrics import solved_share
from forge.workers import Workers

__all__ = ["CHECKED", "warm_up"]

CHECKED = 128


async def warm_up(workers: Workers, problems: Iterator[Problem], config: WarmUpConfig) -> tuple[int, float]:
    """Fine-tune in place on `problems` and sync; returns the steps it took and the share solved at its end.

    Judged by sampling on training problems of its own, so that the held-out ones stay unseen.
    """
    judged, steps, share = list(islice(problems, CHECKED)), 0, 0.0
    while steps < config.max_steps and share < config.until:
        count = min(config.check_every, config.max_steps - steps)
        await workers.fine_tune([list(islice(problems, config.batch_size)) for _ in range(count)])
        await workers.verify(await workers.sync(0))
        share, steps = solved_share(await workers.evaluate(judged, greedy=False)), steps + count
    return steps, share
