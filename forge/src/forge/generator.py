"""The generator actor: owns an engine and an environment, and makes samples of exactly known policy versions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from forge import environments
from forge.config import GrpoConfig
from forge.environments import Problem
from forge.errors import SyncError
from forge.generation import Engine, Request, SamplingParams
from forge.policy import BatchedPolicy, build, log_prob_kernel
from forge.samples import Episode, Sample, sample_from
from forge.sync import WeightChannel, checksum

__all__ = ["GeneratorActor", "Loaded"]

T = TypeVar("T")
PROBE_PROMPTS, PROBE_TOKENS = 2, 4


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a generator answers to a sync: the checksum of its weights, and tokens it has just made with them."""

    checksum: str
    probe: list[Sample]


class GeneratorActor:
    """One generator replica; a plain class, to be launched by any launcher.

    Everything that touches the engine runs in one thread of the actor's own, one thing after the other, so that
    weights change between batches only, while the actor's loop stays free for the environments.
    """

    ENDPOINTS = ("close", "evaluate", "join", "load", "pid", "rollout")

    def __init__(self, config: GrpoConfig) -> None:
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.config = config
        self.environment = environments.find(config.task.name, config.task.options)
        decoder, self.tokenizer = build(config, self.environment)
        if config.threads:
            torch.set_num_threads(config.threads)
        self.channel = WeightChannel(decoder)
        seed = config.seed * 1_000 + self.rank
        self.engine = Engine(decoder, self.tokenizer, seed=seed, log_prob=log_prob_kernel(config))
        self._thread = ThreadPoolExecutor(1, "forge-engine")
        self._turn = asyncio.Lock()

    async def pid(self) -> int:
        """The process this actor runs in."""
        return os.getpid()

    async def join(self, backend: str, host: str, port: int) -> None:
        """Join the trainer's group for weight sync."""
        rank, size, timeout = self.rank + 1, self.size + 1, self.config.sync_timeout
        await self._run(lambda: self.channel.join(backend, rank=rank, size=size, host=host, port=port, timeout=timeout))

    async def load(self, version: int, flat: Tensor | None) -> Loaded:
        """Take over the weights of `version`, and prove it."""
        async with self._turn:
            return await self._run(lambda: self._load(version, flat))

    async def rollout(self, problems: Sequence[Problem], first_group: int) -> list[list[Sample]]:
        """Groups of samples of this rank's share of `problems`, every size-th; groups count from `first_group`."""
        async with self._turn:
            policy = BatchedPolicy(self.engine, self._params(), self._thread)
            mine = range(self.rank, len(problems), self.size)
            copies = [problems[index] for index in mine for _ in range(self.config.group_size)]
            episodes = iter(await self._episodes(copies, policy))
            return [
                [
                    sample_from(next(episodes), group=first_group + index, prompt=problems[index].prompt)
                    for _ in range(self.config.group_size)
                ]
                for index in mine
            ]

    async def evaluate(self, problems: Sequence[Problem], *, greedy: bool, version: int) -> list[Sample]:
        """One sample of each of this rank's share of `problems`, by exactly `version`; uses no seed of the run's."""
        async with self._turn:
            if self.engine.version != version:
                raise SyncError(
                    f"generator {self.rank} holds version {self.engine.version}, not {version}; sync before evaluating",
                    rank=self.rank,
                    version=version,
                )
            mine = range(self.rank, len(problems), self.size)
            params = self._params(temperature=0.0 if greedy else None)
            policy = BatchedPolicy(self.engine, params, self._thread, seeds=mine)
            episodes = await self._episodes([problems[index] for index in mine], policy)
            return [
                sample_from(episode, group=index, prompt=problems[index].prompt)
                for index, episode in zip(mine, episodes, strict=True)
            ]

    async def close(self) -> None:
        """Leave the sync group."""
        await self._run(self.channel.close)

    async def _episodes(self, problems: Sequence[Problem], policy: BatchedPolicy) -> list[Episode]:
        return await asyncio.gather(*(self.environment.rollout(problem, policy) for problem in problems))

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _load(self, version: int, flat: Tensor | None) -> Loaded:
        self.channel.receive(flat)
        self.engine.update(version)
        return Loaded(checksum(self.channel.flat), self._probe())

    def _probe(self) -> list[Sample]:
        """A few tokens made at once, for the trainer to compare log-probabilities with."""
        params = SamplingParams(self.config.sampling.temperature, max_tokens=PROBE_TOKENS, ignore_eos=True, seed=0)
        prompts = [problem.prompt for problem in self.environment.held_out()[:PROBE_PROMPTS]]
        requests = [Request(self.tokenizer.encode(prompt), params) for prompt in prompts]
        return [sample_from(Episode([done], {}), group=0) for done in self.engine.generate(requests)]

    def _params(self, temperature: float | None = None) -> SamplingParams:
        sampling = self.config.sampling
        chosen = sampling.temperature if temperature is None else temperature
        return SamplingParams(chosen, max_tokens=sampling.max_tokens)
