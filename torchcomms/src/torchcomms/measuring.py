"""Measurements on ranks of their own: a module runs on n ranks of this machine, and its first rank reports.

What it writes to stdout is JSON lines: `{"progress": ...}` as it goes, `{"result": ...}` at the end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from torchcomms.backend import Backend, ReduceOp
from torchcomms.discovery import find
from torchcomms.errors import MeasurementFailed

ERRORS = 5  # lines of a failed rank that are repeated


def on_ranks(module: str, ranks: int, arguments: object, progress: Callable[[Any], None] = lambda _: None) -> Any:
    """Run `python -m module JSON` on `ranks` ranks of this machine; what rank 0 reports as its result.

    Call it from the main thread. Raises `MeasurementFailed` if a rank fails.
    """
    from torchcomms.launcher import Job, launch

    results: list[Any] = []
    said: list[str] = []

    def show(rank: int, is_error: bool, line: str, end: str) -> None:
        if is_error:
            said.append(f"[{rank}] {line}")
        elif line.startswith("{"):
            word = json.loads(line)
            results.append(word["result"]) if "result" in word else progress(word["progress"])

    command = (sys.executable, "-u", "-m", module, json.dumps(arguments))
    code = launch(Job(command, ranks, environment={"OMP_NUM_THREADS": "1"}), show)
    if code or not results:
        raise MeasurementFailed(f"{module} on {ranks} ranks ended with {code}: " + "\n".join(said[-ERRORS:]))
    return results[-1]


def run_rank(measure: Callable[[Backend, Any, Callable[[Any], None]], Any], backend: str) -> None:
    """What such a module's main does: open the backend, measure, report."""
    from torchcomms.bootstrap import meeting_place

    torch.set_num_threads(1)
    rank, size, store = meeting_place("measuring", None, None, None, timedelta(seconds=60))
    opened = find(backend).open(rank=rank, size=size, store=store, device="cpu", timeout=60.0)

    def report(word: Any) -> None:
        if rank == 0:
            print(json.dumps({"progress": word}), flush=True)

    try:
        result = measure(opened, json.loads(sys.argv[1]), report)
        opened.barrier().wait()
    finally:
        opened.close()
    if rank == 0:
        print(json.dumps({"result": result}), flush=True)


def timed(backend: Backend, action: Callable[[], object], count: int) -> float:
    """The median over `count` calls of the slowest rank's seconds, all ranks starting together; the same on every rank.

    One call before is not counted.
    """
    seconds = torch.empty(count + 1, dtype=torch.float64)
    for index in range(count + 1):
        backend.barrier().wait()
        started = time.perf_counter()
        action()
        seconds[index] = time.perf_counter() - started
    backend.all_reduce(seconds, ReduceOp.MAX).wait()
    return float(seconds[1:].median())
