"""The trainer and its generators as one object: what a recipe calls, whatever launched them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from forge.batcher import pad
from forge.buffer import Group
from forge.config import GrpoConfig
from forge.environments import Problem
from forge.errors import ParityError, SyncError
from forge.generator import GeneratorActor, Loaded
from forge.launch import load
from forge.samples import Sample
from forge.spec import ActorSpec, Launcher, Mesh
from forge.sync import MESSAGE
from forge.trainer_actor import TrainerActor

__all__ = ["Receipt", "Workers"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a sync brought back: the trainer's checksum, and each generator's answer."""

    version: int
    checksum: str
    loaded: Sequence[Loaded]


@dataclass(slots=True)
class Workers:
    """One trainer and `config.generators` generators; `version` is the one that all of them hold."""

    config: GrpoConfig
    trainer: Mesh
    generators: Mesh
    version: int = 0
    processes: frozenset[int] = frozenset()
    parities: list[float] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def open(cls, config: GrpoConfig, launcher: Launcher | None = None) -> AsyncIterator[Workers]:
        """Launch, join the sync group, and bring all generators to the trainer's weights; closes what it opened."""
        owned = None if launcher is not None else load(config.launcher)
        meshes: tuple[Mesh, ...] = ()
        try:
            meshes = await (launcher or owned).launch(*specs(config))  # type: ignore[union-attr]
            workers = cls(config, *meshes)
            await workers._start()
            yield workers
            await asyncio.gather(*(mesh.close.call() for mesh in meshes))
        finally:
            for mesh in meshes:
                await mesh.stop()
            if owned is not None:
                await owned.close()

    async def rollout(self, problems: Sequence[Problem], first: int) -> list[Group]:
        """One group of samples for each problem, numbered from `first`, in order, spread over the generators."""
        return _interleave((await self.generators.rollout.call(list(problems), first)).values())

    async def train(self, samples: Sequence[Sample], advantages: Tensor) -> dict[str, float]:
        """One optimizer step; returns its metrics."""
        return await self.trainer.train.call_one(pad(samples, advantages))  # type: ignore[no-any-return]

    async def fine_tune(self, batches: Sequence[Sequence[Problem]]) -> list[float]:
        """Supervised steps, one a batch; returns their losses."""
        return await self.trainer.fine_tune.call_one(batches)  # type: ignore[no-any-return]

    async def sync(self, version: int) -> Receipt:
        """Give the trainer's weights to all generators as `version`; `verify` the receipt before relying on it."""
        if self.config.sync == MESSAGE:
            checksum, flat = await self.trainer.publish.call_one()
            loaded = await self.generators.load.call(version, flat)
        else:
            loading = self.generators.load.call(version, None)
            (checksum, _), loaded = await asyncio.gather(self.trainer.publish.call_one(), loading)
        self.version = version
        return Receipt(version, checksum, loaded.values())

    async def verify(self, receipt: Receipt) -> None:
        """Raise `SyncError` or `ParityError` unless every generator holds and computes what the trainer does."""
        for rank, generator in enumerate(receipt.loaded):
            if generator.checksum != receipt.checksum:
                raise SyncError(
                    f"after the sync of version {receipt.version} generator {rank} holds {generator.checksum[:12]}, "
                    f"the trainer {receipt.checksum[:12]}; the sync by {self.config.sync!r} loses or changes weights",
                    rank=rank,
                    version=receipt.version,
                )
            await self._check_parity(receipt.version, rank, generator.probe)

    async def evaluate(self, problems: Sequence[Problem], *, greedy: bool) -> list[Sample]:
        """One sample a problem, in their order, all by the present version."""
        shares = (await self.generators.evaluate.call(list(problems), greedy=greedy, version=self.version)).values()
        return _interleave(shares)

    async def save(self, directory: str) -> None:
        """Write the trainer's model as a Hugging Face directory."""
        await self.trainer.save_weights.call_one(directory)

    async def _start(self) -> None:
        pids = [await self.trainer.pid.call_one(), *(await self.generators.pid.call()).values()]
        self.processes = frozenset(pids)
        if self.config.sync != MESSAGE:
            where = (self.config.sync, self.config.sync_host, await self.trainer.host.call_one())
            await asyncio.gather(self.trainer.join.call_one(*where), self.generators.join.call(*where))
        await self.verify(await self.sync(0))

    async def _check_parity(self, version: int, rank: int, probe: Sequence[Sample]) -> None:
        difference = await self.trainer.parity.call_one(probe)
        if not difference <= self.config.parity_tolerance:  # NaN is no parity either
            raise ParityError(
                f"with the weights of version {version} generator {rank} and the trainer differ by {difference:.2e} in "
                f"a log-probability; at most {self.config.parity_tolerance:g} is allowed: compare their kernels",
                rank=rank,
                version=version,
                difference=difference,
                tolerance=self.config.parity_tolerance,
            )
        self.parities.append(difference)


def specs(config: GrpoConfig) -> tuple[ActorSpec, ActorSpec]:
    """What a launcher is asked for: the trainer, and the generators."""
    resources = {"cpus": float(config.threads)} if config.threads else {}
    return (
        ActorSpec(
            "forge.trainer_actor:TrainerActor",
            (config,),
            name="trainer",
            resources=resources,
            endpoints=TrainerActor.ENDPOINTS,
        ),
        ActorSpec(
            "forge.generator:GeneratorActor",
            (config,),
            name="generators",
            extent={"replicas": config.generators},
            resources=resources,
            endpoints=GeneratorActor.ENDPOINTS,
        ),
    )


def _interleave(shares: Sequence[Sequence[T]]) -> list[T]:
    """Undo the split by rank: rank r has every len(shares)-th item from the r-th on."""
    return [share[index] for index in range(len(shares[0])) for share in shares if index < len(share)]
