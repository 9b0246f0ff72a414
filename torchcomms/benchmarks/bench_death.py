"""How long after a rank is killed every survivor has its error: 4 ranks of the tcp backend, inside an all_reduce.

Run `python benchmarks/bench_death.py`: writes bench_death.json and its section of RESULTS.md. torch has no peer that
names the dead rank; the limit is the time until a survivor's bare socket is readable after the same kill.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import results
import torch
from torch.distributed import FileStore

import torchcomms

RANKS = 4
TRIALS = 40
ELEMENTS = 1 << 20  # float32: an all_reduce of some ten milliseconds
VICTIM = 2
DEADLINE = 60.0  # seconds; a trial takes a fraction of one


def fork(function: Callable[[], None]) -> int:
    """A child that runs `function` and ends."""
    child = os.fork()
    if child:
        return child
    try:
        function()
    finally:
        os._exit(0)


def survive(rank: int, folder: str, words: int) -> None:
    """Reduce for ever; say when the first is done, and then when which death is noticed."""
    store = FileStore(f"{folder}/store", RANKS)
    comm = torchcomms.new_comm("tcp", "cpu", name="death", store=store, rank=rank, size=RANKS)
    tensor = torch.ones(ELEMENTS)
    comm.all_reduce(tensor, torchcomms.ReduceOp.AVG)
    os.write(words, b"ready\n")
    try:
        while True:
            comm.all_reduce(tensor, torchcomms.ReduceOp.AVG)
    except torchcomms.PeerFailed as error:
        noticed = time.monotonic()
        os.write(words, f"{noticed} {sorted(error.ranks)}\n".encode())
    signal.pause()  # until killed: a survivor that left would be another event


def trial() -> dict[str, float]:
    """Milliseconds from the kill to the error, of the first and of the last survivor."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [os.pipe() for _ in range(RANKS)]
        ranks = [fork(lambda rank=rank: survive(rank, folder, pipes[rank][1])) for rank in range(RANKS)]
        try:
            for read, _ in pipes:
                assert line(read) == "ready"
            time.sleep(random.uniform(0.0, 0.05))  # anywhere inside a collective
            killed = time.monotonic()
            os.kill(ranks[VICTIM], signal.SIGKILL)
            said = [line(read) for rank, (read, _) in enumerate(pipes) if rank != VICTIM]
        finally:
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
                os.waitpid(rank, 0)
            for pipe in pipes:
                os.close(pipe[0])
                os.close(pipe[1])
    assert all(one.endswith(f" [{VICTIM}]") for one in said), said
    late = [(float(one.split()[0]) - killed) * 1e3 for one in said]
    return {"first": min(late), "last": max(late), "limit": bare()}


def line(read: int) -> str:
    """The next line of a pipe, within the deadline."""
    assert select.select([read], [], [], DEADLINE)[0], "a rank says nothing"
    return os.read(read, 1 << 10).decode().strip()


def bare() -> float:
    """Milliseconds from a kill to the end of the victim's connection, with nothing between."""
    ours, theirs = socket.socketpair()
    child = fork(lambda: (ours.close(), signal.pause()))
    theirs.close()
    killed = time.monotonic()
    os.kill(child, signal.SIGKILL)
    assert ours.recv(1) == b""
    late = (time.monotonic() - killed) * 1e3
    ours.close()
    os.waitpid(child, 0)
    return late


def section(rows: list[dict[str, float]]) -> list[str]:
    lines = [
        "## Noticing a death",
        f"Milliseconds from SIGKILL of one of {RANKS} ranks inside an all_reduce of {ELEMENTS * 4 >> 20} MiB to",
        f"`PeerFailed` naming it, {len(rows)} kills, {RANKS} processes on the cores above. Limit is a bare socket.",
        "",
        "| | median | 90th percentile | worst |",
        "| --- | --- | --- | --- |",
    ]
    names = {"first": "first survivor", "last": "last survivor", "limit": "limit"}
    for key, name in names.items():
        values = [row[key] for row in rows]
        tenth = statistics.quantiles(values, n=10)[-1]
        lines.append(f"| {name} | {statistics.median(values):.2f} | {tenth:.2f} | {max(values):.2f} |")
    return lines


def main() -> None:
    torch.set_num_threads(1)
    where = results.machine()
    rows = [trial() for _ in range(TRIALS)]
    print(results.record(Path(__file__).stem, rows, section(rows), where))


if __name__ == "__main__":
    main()
