"""One rank of `torchcomms doctor --test`: `python -m torchcomms.selftest BACKEND…`, started by a launcher.

Rank 0 prints one line for each backend: the marker, then its name and what was wrong with it, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import cast

import torch
from torch.distributed import HashStore  # type: ignore[attr-defined, unused-ignore]  # not re-exported by its stubs

from torchcomms import ReduceOp, Store, TorchComm, find, new_comm

MARKER = "torchcomms-selftest "
MODULE = "torchcomms.selftest"
TIMEOUT = timedelta(seconds=20)
THREADS = frozenset({"inproc", "sim"})  # their ranks live in one process


def check(comm: TorchComm) -> str:
    """What is wrong with a sum over the ranks, or nothing."""
    device, size = comm.get_device(), comm.get_size()
    tensor = torch.full((1000,), float(comm.get_rank() + 1), device=device)
    comm.all_reduce(tensor, ReduceOp.SUM)
    wanted = size * (size + 1) / 2
    found = tensor.cpu()
    return "" if bool((found == wanted).all()) else f"wrong sum: {sorted(set(found.tolist()))}, not {wanted}"


def in_one_process(name: str) -> str:
    """The test of a backend whose ranks are threads."""
    store = cast(Store, HashStore())

    def rank(number: int) -> str:
        with new_comm(name, "cpu", name="selftest", store=store, rank=number, size=2, timeout=TIMEOUT) as comm:
            return check(comm)

    with ThreadPoolExecutor(2) as threads:
        return "; ".join(filter(None, threads.map(rank, range(2))))


def among_processes(name: str) -> str:
    """The test of any other."""
    devices = find(name).capabilities().devices
    kind = "cpu" if "cpu" in devices else sorted(devices)[0]
    count = 1 if kind == "cpu" else torch.accelerator.device_count()
    device = torch.device(kind) if kind == "cpu" else torch.device(kind, int(os.environ["RANK"]) % count)
    if count < 2 and kind != "cpu":
        return f"not tested: it needs two devices, {kind} has {count}"
    with new_comm(name, device, name=f"selftest-{name}", timeout=TIMEOUT) as comm:
        return check(comm)


def main(names: list[str]) -> None:
    """Test one backend after the other."""
    torch.set_num_threads(1)
    for name in names:
        try:
            trouble = in_one_process(name) if name in THREADS else among_processes(name)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        print(MARKER + json.dumps([name, trouble]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
