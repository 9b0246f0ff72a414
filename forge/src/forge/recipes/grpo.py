"""Group-relative policy optimization as two coroutines: one makes groups of samples, the other trains on them.

    problems ─▶ rollout ─▶ Buffer ─▶ train ─▶ sync ─▶ generators ─▶ rollout …

`rollout` waits for the buffer's admission slots, which a sync frees; `train` waits for the buffer's groups. With
`max_staleness = 0` they take turns; with 1, the generators make the next step's groups while the trainer trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from forge import algorithms, environments
from forge.buffer import Buffer
from forge.config import GrpoConfig
from forge.environments import Problem
from forge.evaluation import Evaluation, evaluate
from forge.loops import beside
from forge.metrics import Stopwatch, rollout_metrics
from forge.report import write_report
from forge.run_directory import RunDirectory
from forge.samples import Sample
from forge.spec import Launcher
from forge.warm_up import warm_up
from forge.workers import Workers

__all__ = ["GrpoConfig", "OnStep", "Result", "run"]

OnStep = Callable[[Mapping[str, float]], None]


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to."""

    before: Evaluation  # after the warm-up, before the first step
    after: Evaluation
    history: list[dict[str, float]]  # the metrics of every step
    run_dir: Path
    weights_dir: Path  # the trained policy, as a Hugging Face directory
    sync: str  # the backend that moved the weights, or "message"
    processes: frozenset[int]  # of trainer and generators
    parity: float  # mean over all syncs of the largest log-probability difference between trainer and generator


async def run(config: GrpoConfig, *, launcher: Launcher | None = None, on_step: OnStep | None = None) -> Result:
    """Train as `config` says, on actors of `launcher` (by default the configured one); `on_step` sees every metric."""
    task, algorithm = environments.find(config.task.name, config.task.options), algorithms.find(config.algorithm)
    held_out, directory = task.held_out(), RunDirectory(config)
    async with Workers.open(config, launcher) as workers:
        await warm_up(workers, task.problems(config.seed + 1), config.warm_up)
        before = await evaluate(workers, held_out)
        directory.log({"step": 0, **before.metrics()})
        loop = Loop(config, workers, directory, on_step or (lambda metrics: None))
        await beside(loop.rollout(task.problems(config.seed)), loop.train(algorithm, held_out))
        after = await evaluate(workers, held_out)
        directory.log({"step": config.steps, **after.metrics()})
        weights = directory.weights(config.steps)
        await workers.save(str(weights))
    write_report(directory.path)
    parity = sum(workers.parities) / len(workers.parities)
    return Result(before, after, loop.history, directory.path, weights, config.sync, workers.processes, parity)


class Loop:
    """The two coroutines, with what they share."""

    def __init__(self, config: GrpoConfig, workers: Workers, directory: RunDirectory, on_step: OnStep) -> None:
        self.config, self.workers, self.directory, self.on_step = config, workers, directory, on_step
        self.buffer = Buffer(config.groups_per_step, config.max_staleness)
        self.clock = Stopwatch()
        self.history: list[dict[str, float]] = []

    async def rollout(self, problems: Iterator[Problem]) -> None:
        """Make groups for as long as the buffer admits them."""
        while True:
            first = await self.buffer.admit(self.config.groups_per_step)
            with self.clock.time("generate"):
                groups = await self.workers.rollout(list(islice(problems, self.config.groups_per_step)), first)
            await self.buffer.put(first, groups)

    async def train(self, algorithm: algorithms.Algorithm, held_out: Sequence[Problem]) -> None:
        """Train on each batch of groups, and give every version of the weights to the generators."""
        for step in range(1, self.config.steps + 1):
            with self.clock.time("wait"):
                groups = await self.buffer.take()
            self.buffer.check(groups)
            samples = [sample for group in groups for sample in group]
            rewards = torch.tensor([sample.reward for sample in samples])
            advantages = algorithm.advantages(rewards, torch.tensor([sample.group for sample in samples]))
            with self.clock.time("train"):
                metrics = await self.workers.train(samples, advantages)
            with self.clock.time("sync"):
                receipt = await self.workers.sync(step)
            await self.buffer.synced(step)
            await self.workers.verify(receipt)
            metrics |= {"step": float(step), **rollout_metrics(samples, step - 1), **self.clock.take()}
            if self.config.eval_every and step % self.config.eval_every == 0 and step < self.config.steps:
                metrics |= (await evaluate(self.workers, held_out)).metrics()
            self._record(step, samples, metrics)

    def _record(self, step: int, samples: Sequence[Sample], metrics: dict[str, float]) -> None:
        metrics["tokens_per_second"] = metrics["tokens/trained"] / metrics["time/step"]
        self.history.append(metrics)
        self.directory.log(metrics)
        self.directory.rollouts(step, samples)
        self.on_step(metrics)
