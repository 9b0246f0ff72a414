"""The measurements behind a calibration, on an opened backend of two or more ranks; all ranks call them.

Run as a module by `calibrate` on ranks of their own.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from torchcomms.algorithms.exchange import peers
from torchcomms.backend import P2P, Backend, ReduceOp
from torchcomms.measuring import run_rank, timed
from torchcomms.sim.calibration import LENGTHS

TINY, BURST = 8, 64
LARGE = 4 << 20


def measure(backend: Backend, repeats: int, report: Callable[[Any], None]) -> dict[str, float]:
    """Seconds, and seconds per byte, of what the model is made of."""
    facts: dict[str, float] = {"ranks": backend.size}
    report("latency")
    facts["one way"] = one_way(backend, TINY, repeats * 20)
    facts["burst"] = burst(backend, repeats * 5)
    for nbytes in LENGTHS:
        report(f"{nbytes} bytes")
        facts[f"one way {nbytes}"] = one_way(backend, nbytes, repeats)
        facts[f"exchange {nbytes}"] = exchange(backend, nbytes, repeats)
    facts["exchange"] = exchange(backend, TINY, repeats * 20)
    report("copying and reducing")
    one, other = torch.zeros(LARGE // 4), torch.ones(LARGE // 4)
    facts["copy"] = timed(backend, lambda: one.copy_(other), repeats) / LARGE
    facts["reduce"] = timed(backend, lambda: torch.add(one, other, out=one), repeats) / LARGE
    return facts


def one_way(backend: Backend, nbytes: int, repeats: int) -> float:
    """Half of a round trip between ranks 0 and 1, while the others wait."""
    tensor = torch.zeros(nbytes, dtype=torch.uint8)
    times = []
    backend.barrier().wait()
    for _ in range(repeats + 1):
        if backend.rank < 2:
            there, back = P2P("send", tensor, 1 - backend.rank), P2P("recv", tensor, 1 - backend.rank)
            started = time.perf_counter()
            for one in (there, back) if backend.rank == 0 else (back, there):
                backend.post([one]).wait()
            times.append((time.perf_counter() - started) / 2)
    return _agreed(backend, statistics.median(times[1:]) if times else 0.0)


def burst(backend: Backend, repeats: int) -> float:
    """From the first to the last of many tiny messages from rank 0 to 1, over their number."""
    tensors = [torch.zeros(TINY, dtype=torch.uint8) for _ in range(BURST)]
    kind, times = ("send", "recv")[min(backend.rank, 1)], []
    for _ in range(repeats + 1):
        backend.barrier().wait()
        if backend.rank < 2:
            started = time.perf_counter()
            backend.post([P2P(kind, one, 1 - backend.rank) for one in tensors]).wait()  # type: ignore[arg-type]
            times.append((time.perf_counter() - started) / BURST)
    return _agreed(backend, statistics.median(times[1:]) if times else 0.0)


def exchange(backend: Backend, nbytes: int, repeats: int) -> float:
    """Every rank sends to every other at once, `nbytes` in all."""
    others = peers(backend)
    one = max(1, nbytes // len(others))
    outgoing = torch.zeros(one, dtype=torch.uint8)
    incoming = [torch.zeros(one, dtype=torch.uint8) for _ in others]
    batch = [P2P("recv", into, peer) for into, peer in zip(incoming, others, strict=True)]
    batch += [P2P("send", outgoing, peer) for peer in others]
    return timed(backend, lambda: backend.post(batch).wait(), repeats)


def _agreed(backend: Backend, seconds: float) -> float:
    one = torch.tensor([seconds], dtype=torch.float64)
    backend.all_reduce(one, ReduceOp.MAX).wait()
    return float(one)


if __name__ == "__main__":
    run_rank(
        lambda backend, plan, report: measure(backend, plan["repeats"], report), json.loads(sys.argv[1])["backend"]
    )
