"""What the ranks of the soak do: functions that are sent to their processes, each of which says what it has seen."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch

from torchcomms import ReduceOp, TorchComm
from torchcomms.testing.operations import OPERATIONS, Case, Local, first_wrong

Outcome = tuple[str, tuple[int, ...]]  # the error's name, or "", and the ranks that it names
DEADLINE = 30.0  # seconds after which a loop that should have failed gives up


def prepare(comm: TorchComm) -> None:
    """Let the watchdog ask where this rank is."""
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)


def holds(comm: TorchComm) -> tuple[int, int, int]:
    """Descriptors, threads, and kilobytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    threads = sum(thread.is_alive() for thread in threading.enumerate())
    return len(os.listdir("/proc/self/fd")), threads, pages * os.sysconf("SC_PAGE_SIZE") >> 10


def work(cases: Sequence[Case], comm: TorchComm) -> str:
    """Run the cases; the first that is wrong."""
    for case in cases:
        local = Local(comm, case, comm.get_rank(), comm.get_size(), comm.get_device())
        wrong = first_wrong(OPERATIONS[case.operation](local), case, False)
        if wrong:
            return f"{case}: {wrong}"
    return ""


def work_at_once(seed: int, comm: TorchComm) -> str:
    """Several operations in flight, waited for in an order of this rank's own."""
    count = random.Random(seed).choice((3, 700, 40_000))
    tensors = [torch.full((count,), float(number)) for number in range(6)]
    works = [(comm.all_reduce(one, ReduceOp.SUM, async_op=True), number) for number, one in enumerate(tensors)]
    random.Random(seed + comm.get_rank()).shuffle(works)
    for pending, number in works:
        pending.wait()
        if not bool((tensors[number] == number * comm.get_size()).all()):
            return f"operation {number} in flight holds {float(tensors[number][0])}"
    return ""


def work_in_a_part(seed: int, comm: TorchComm) -> str:
    """A sub-group of the others, or of all."""
    members = random.Random(seed).sample(range(comm.get_size()), random.Random(seed).randint(1, comm.get_size()))
    if comm.get_rank() not in members:
        return ""
    part = comm.split(members, f"part{seed}")
    if part is None or part.get_rank() != members.index(comm.get_rank()):
        return f"rank {comm.get_rank()} has another place in the sub-group {members}"
    tensor = torch.ones(100)
    part.all_reduce(tensor, ReduceOp.SUM)
    part.finalize()
    return "" if float(tensor[99]) == len(members) else f"a sub-group of {len(members)} sums up to {float(tensor[0])}"


def outcome(error: Exception | None) -> Outcome:
    """An error in words that compare."""
    named = getattr(error, "ranks", None) or getattr(error, "missing", None) or getattr(error, "calls", None) or ()
    return type(error).__name__ if error is not None else "", tuple(sorted(named))


def disagree(kind: str, odd: int, comm: TorchComm) -> Outcome:
    """One rank calls something else."""
    tensor, differs = torch.ones(8), comm.get_rank() == odd
    try:
        if kind == "length":
            comm.all_reduce(tensor[:4] if differs else tensor, ReduceOp.SUM)
        elif kind == "operation":
            comm.broadcast(tensor, 0) if differs else comm.all_reduce(tensor, ReduceOp.SUM)
        elif kind == "reduction":
            comm.all_reduce(tensor, ReduceOp.MAX if differs else ReduceOp.SUM)
        else:
            comm.reduce(tensor, comm.get_size() - 1 if differs else 0, ReduceOp.SUM)
    except Exception as error:
        kept = bool((tensor == 1.0).all())
        return outcome(error) if kept else ("a mismatch that has written to the tensor", ())
    return outcome(None)


def stay_away(absent: int, comm: TorchComm) -> Outcome:
    """One rank does not come."""
    try:
        if comm.get_rank() != absent:
            comm.all_reduce(torch.ones(8), ReduceOp.SUM, timeout=timedelta(seconds=0.2))
    except Exception as error:
        return outcome(error)
    return outcome(None)


def until_it_fails(count: int, comm: TorchComm) -> tuple[Outcome, float]:
    """Reduce for ever; how it ended, and the monotonic second."""
    tensor, until = torch.ones(count), time.monotonic() + DEADLINE
    try:
        while time.monotonic() < until:
            comm.all_reduce(tensor, ReduceOp.MAX)
            if not bool((tensor == 1.0).all()):
                return ("a wrong value", ()), time.monotonic()
    except Exception as error:
        return outcome(error), time.monotonic()
    return outcome(None), time.monotonic()


def aborted(victim: int, comm: TorchComm) -> Outcome:
    """One rank aborts while all reduce, and goes; the others need it still."""
    if comm.get_rank() == victim:
        threading.Timer(0.02, comm.abort, ["the soak says so"]).start()
    ended, _ = until_it_fails(20_000, comm)
    if comm.get_rank() == victim:
        comm.finalize()
    return ended


def handle(comm: TorchComm) -> str:
    """Where this rank can be met."""
    return comm.get_init_handle()


def form_anew(handles: Sequence[str], uuid: int, cases: Sequence[Case], comm: TorchComm) -> str:
    """The survivors go on with each other."""
    comm.reconfigure(uuid, handles, timedelta(seconds=DEADLINE))
    if comm.get_rank() != list(handles).index(comm.get_init_handle()):
        return f"rank {comm.get_rank()} is not this one's place in the list"
    return work(cases, comm)
