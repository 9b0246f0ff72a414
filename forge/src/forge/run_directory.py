"""The directory of a run: configuration, metrics, rollouts, weights, and a report with the curves."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from forge.config import GrpoConfig
from forge.config_files import dump
from forge.samples import Sample

__all__ = ["RunDirectory", "read_metrics", "read_rollouts"]


class RunDirectory:
    """Made anew for each run; never writes into one that is already there."""

    def __init__(self, config: GrpoConfig) -> None:
        self.path = _fresh(Path(config.out), config.name or f"{config.task.name.rpartition(':')[2]}-{config.algorithm}")
        (self.path / "rollouts").mkdir(parents=True)
        (self.path / "config.toml").write_text(dump(config))

    def log(self, metrics: Mapping[str, float]) -> None:
        """Append one line to metrics.jsonl, readable at once."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({name: _plain(value) for name, value in metrics.items()}) + "\n")

    def rollouts(self, step: int, samples: Sequence[Sample]) -> None:
        """Write the samples that a step trained."""
        with (self.path / "rollouts" / f"step_{step}.jsonl").open("w") as file:
            file.writelines(json.dumps(_record(sample)) + "\n" for sample in samples)

    def weights(self, step: int) -> Path:
        """Where a step's model goes."""
        return self.path / "weights" / f"step_{step}"


def read_metrics(run: Path) -> list[dict[str, float]]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def read_rollouts(run: Path, step: int | None = None) -> tuple[int, list[dict[str, Any]]]:
    """The samples of a step, or of the last one, and which step that is."""
    steps = sorted(int(file.stem.removeprefix("step_")) for file in (run / "rollouts").glob("step_*.jsonl"))
    if not steps or (step is not None and step not in steps):
        raise FileNotFoundError(f"{run} has no rollouts of step {step}; it has steps {steps[:1]} to {steps[-1:]}")
    chosen = steps[-1] if step is None else step
    lines = (run / "rollouts" / f"step_{chosen}.jsonl").read_text().splitlines()
    return chosen, [json.loads(line) for line in lines]


def _fresh(out: Path, name: str) -> Path:
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while (path := out / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return path


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 7)


def _record(sample: Sample) -> dict[str, Any]:
    record = asdict(sample)
    record["reward"] = _plain(sample.reward)
    record["logprobs"] = [round(value, 5) for value in sample.logprobs]
    return record
