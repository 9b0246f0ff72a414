"""The trainer actor: owns the trainer, hosts the sync group's store, and publishes every version's weights."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from forge import environments
from forge.batcher import Batch, pad
from forge.config import GrpoConfig, OptimizerConfig
from forge.environments import Problem
from forge.models import save
from forge.policy import build, log_prob_kernel
from forge.samples import Sample
from forge.sft import FineTuner
from forge.sync import WeightChannel, checksum, host_store
from forge.trainer import Trainer

__all__ = ["TrainerActor"]


class TrainerActor:
    """The one trainer of a run; a plain class, to be launched by any launcher."""

    ENDPOINTS = ("close", "fine_tune", "host", "join", "parity", "pid", "publish", "save_weights", "train")

    def __init__(self, config: GrpoConfig) -> None:
        self.config = config
        decoder, self.tokenizer = build(config, environments.find(config.task.name, config.task.options))
        if config.threads:
            torch.set_num_threads(config.threads)
        self.channel = WeightChannel(decoder)
        self.trainer = Trainer(
            decoder,
            config.optimizer,
            config.loss,
            temperature=config.sampling.temperature,
            log_prob=log_prob_kernel(config),
        )
        self._fine_tuner = FineTuner(decoder, self.tokenizer, OptimizerConfig(lr=config.warm_up.lr, warm_up_steps=0))
        self._store: TCPStore | None = None

    def pid(self) -> int:
        """The process this actor runs in."""
        return os.getpid()

    def host(self) -> int:
        """Open the store at which the sync group meets; returns its port."""
        self._store = host_store(self.config.sync_host, self.config.sync_timeout)
        return int(self._store.port)

    def join(self, backend: str, host: str, port: int) -> None:
        """Join the sync group as rank 0."""
        size, timeout = self.config.generators + 1, self.config.sync_timeout
        self.channel.join(backend, rank=0, size=size, host=host, port=port, timeout=timeout)

    def publish(self) -> tuple[str, Tensor | None]:
        """The checksum of the weights, which are broadcast to the group, or returned as well where there is none."""
        sent = self.channel.send()
        return checksum(self.channel.flat), sent

    def train(self, batch: Batch) -> dict[str, float]:
        """One step; returns its metrics."""
        return self.trainer.train(batch)

    def fine_tune(self, batches: Sequence[Sequence[Problem]]) -> list[float]:
        """One supervised step a batch; returns their losses."""
        return [self._fine_tuner.step(problems) for problems in batches]

    def parity(self, probe: Sequence[Sample]) -> float:
        """Largest difference between a generator's log-probabilities and the trainer's own."""
        return self.trainer.parity(pad(probe, torch.zeros(len(probe)), self.tokenizer.pad_id))

    def save_weights(self, directory: str) -> None:
        """Write the model as a Hugging Face directory."""
        save(self.trainer.decoder, self.tokenizer, Path(directory))

    def close(self) -> None:
        """Leave the sync group."""
        self.channel.close()
