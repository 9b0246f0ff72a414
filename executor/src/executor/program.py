"""A compiled program in memory: save it, prove it against the model, and say what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor import ir, ir_json
from executor.errors import VerificationError
from executor.file import Blob, WeightData, write
from executor.manifest import Manifest, Method, State

if TYPE_CHECKING:
    from executor.report import Report
    from executor.vectors import Case

_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one output of one call is from the model's; `max_rel_diff` is of the largest value due."""

    method: str
    call: int
    output: str
    max_abs_diff: float
    max_rel_diff: float
    within: bool


@dataclass(frozen=True, slots=True)
class Verification:
    """What a program gave in a process without torch, beside what the model gave. True if all is within tolerance."""

    differences: tuple[Difference, ...]

    @property
    def max_abs_diff(self) -> float:
        """The largest of all."""
        return max((entry.max_abs_diff for entry in self.differences), default=0.0)

    def __bool__(self) -> bool:
        return all(entry.within for entry in self.differences)

    def __str__(self) -> str:
        lines = [
            f"{entry.method} call {entry.call}, {entry.output}: max abs diff {entry.max_abs_diff:.3g}, "
            f"{entry.max_rel_diff:.3g} of the largest value{'' if entry.within else '  BEYOND TOLERANCE'}"
            for entry in self.differences
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Program:
    """A model compiled for one target. It owns its code; weights are the model's own memory until `save`.

    `cases` are example calls with the model's own outputs; they go into the file and are what `verify` replays.
    """

    target: str
    ir: ir.LoopProgram
    methods: tuple[Method, ...]
    state: tuple[State, ...]
    weights: tuple[WeightData, ...]
    source: str
    code: bytes
    cases: tuple[Case, ...]
    notes: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    def save(self, path: str | Path) -> Manifest:
        """Write the program file, whole or not at all; its manifest."""
        from executor import __version__
        from executor.vectors import encode

        segments = [
            Blob("ir", ir_json.dump(self.ir)),
            Blob("code", self.code, self.target),
            Blob("source", self.source.encode()),
            Blob("vectors", encode(self.cases)),
        ]
        return write(
            path, methods=self.methods, state=self.state, weights=self.weights, segments=segments, version=__version__
        )

    def verify(self) -> Verification:
        """Save it, run it in a process where torch cannot be imported, and compare with what the model gave.

        VerificationError if that process fails; differences beyond tolerance are in the result, which is then false.
        """
        with tempfile.TemporaryDirectory(prefix="edge-") as folder:
            path = os.path.join(folder, "program.edge")
            self.save(path)
            return Verification(tuple(Difference(**entry) for entry in _isolated(path)))

    def report(self) -> Report:
        """What it costs: operations, bytes, memory beside its lower bound; print it."""
        from executor.report import report_of

        return report_of(self)


def _isolated(path: str) -> Sequence[dict[str, Any]]:
    """The differences found by a fresh interpreter that has the standard library, numpy and this package."""
    root = str(Path(__file__).resolve().parents[1])
    begin = "import sys; sys.path.insert(0, sys.argv[1]); from executor.isolated import main; main(sys.argv[2])"
    command = [sys.executable, "-P", "-c", begin, root, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode:
        raise VerificationError(f"the program fails in a process of its own:\n{done.stderr[-2000:]}")
    made: list[dict[str, Any]] = json.loads(done.stdout)
    return made
