"""How fast one core packs and unpacks compressed tensors, and so below which speed of a link compression pays."""

from __future__ import annotations

import time

import torch
from turns import cell, run
from world import spread

from torchcomms.compress import KINDS

COUNT = 1 << 20  # float32
TIMES = 40


def timed(function) -> list[float]:
    """Microseconds of each call after the first."""
    times = []
    for _ in range(TIMES + 1):
        started = time.perf_counter()
        function()
        times.append((time.perf_counter() - started) * 1e6)
    return times[1:]


def even(pack: float, unpack: float, ratio: float) -> float:
    """GB/s of a link on which two ranks gain nothing: what stays at home costs as much time as what need not travel.

    Each packs the tensor once, unpacks half of it as a part and all of it as the result.
    """
    return COUNT * 4 * (1 - ratio) / (pack + 1.5 * unpack) / 1e3


def measure() -> tuple[list[dict], list[str]]:
    """Rows and section."""
    numbers, found, rows = torch.randn(COUNT), torch.empty(COUNT), []
    for kind, code in sorted(KINDS.items()):
        message = torch.empty(code.nbytes(COUNT), dtype=torch.uint8)
        pack = spread(timed(lambda code=code, message=message: code.encode(numbers, message)))
        unpack = spread(timed(lambda code=code, message=message: code.decode(message, found)))
        ratio = len(message) / (4 * COUNT)
        pays = even(pack["median"], unpack["median"], ratio)
        rows.append({"kind": kind, "pack": pack, "unpack": unpack, "ratio": ratio, "pays_below_GBps": pays})
    return rows, [
        "## Compression",
        f"Microseconds to pack and unpack {COUNT * 4 >> 20} MiB of float32 on one core, median and quartiles; bytes",
        "over those of float32; and the speed of a link below which an all_reduce of two ranks is faster compressed.",
        "",
        "| | pack | unpack | bytes | pays below |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {row['kind']} | {cell(row['pack'])} | {cell(row['unpack'])} | {row['ratio']:.3f} | "
            f"{row['pays_below_GBps']:.1f} GB/s |"
            for row in rows
        ),
    ]


if __name__ == "__main__":
    run(__file__, __doc__, measure)
