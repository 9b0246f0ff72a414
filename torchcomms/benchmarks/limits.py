"""What the machine can do in the same minutes: copying memory on all cores at once, and the core driven from C."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from world import Failed

from torchcomms.providers.shm import backend, build, rendezvous

SOURCE = Path(__file__).with_name("limit.c")
DTYPES = {"float32": 0, "bfloat16": 3}  # numbers of fold.h
PATIENCE = 60.0


class Limit:
    """The compiled program of limit.c."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._program = str(Path(self._folder.name, "limit"))
        compiler = build.compiler()
        if compiler is None:
            raise Failed("limit: absent: there is no C compiler")
        core = [str(build.CORE / source) for source in build.SOURCES if source != "module.c"]
        flags = ["-O2", "-march=native", "-ftree-vectorize", "-ffp-contract=off"]
        flags += [] if "clang" in compiler else ["-fvect-cost-model=dynamic"]
        command = [compiler, "-std=gnu11", *flags, f"-I{build.CORE}", str(SOURCE), *core, "-o", self._program]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"limit: does not compile: {done.stderr.strip()[-300:]}")

    def measure(self, case, ranks, what=""):
        """Microseconds of a call, of the slowest rank, for each sample; `what` is "copy", "bare" or "wire" instead."""
        heap = -(-(case.bytes + 8192) // 4096) * 4096
        words = [what or case.operation, case.bytes, DTYPES[case.dtype], ranks, int(case.own), case.inner, case.samples]
        plan = rendezvous.layout(ranks, backend.PIECE)
        spin = backend.SPIN if ranks <= len(os.sched_getaffinity(0)) else backend.CROWDED
        layout = [plan.slot, plan.chunk, plan.small, plan.piece, heap, int(spin * 1e9)]
        command = [self._program, *map(str, [*words, *layout])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise Failed(f"limit: {' '.join(command[1:])} ended with {done.returncode}")
        return [float(line) for line in done.stdout.split()]

    def close(self):
        """Remove the program."""
        self._folder.cleanup()
