"""Checks of communicators over their life: messages, threads, deaths, aborts, recovery, sub-groups, nothing left."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import torch

from torchcomms.backend import ReduceOp
from torchcomms.errors import CommsAborted, PeerFailed
from torchcomms.testing.endings import PROMPT, aborts, held, held_after_collecting, notices
from torchcomms.testing.report import Check, expect
from torchcomms.testing.world import World, in_background, results, run_and_kill, soon

if TYPE_CHECKING:
    from torchcomms.comm import TorchComm

RANKS = 3
VICTIM = 2
LONG = 1 << 20  # elements
GROUPS = 20
UUID = 7  # of an attempt to form the group anew


def pair_then_barrier(world: World[TorchComm]) -> None:
    expect(results(world, _pair_then_barrier)[1] == 5.0, "a message between two of the ranks arrives changed")


def _pair_then_barrier(comm: TorchComm) -> float:
    tensor = torch.full((3,), 5.0 if comm.get_rank() == 0 else 0.0, device=comm.get_device())
    if comm.get_rank() < 2:
        comm.send(tensor, 1) if comm.get_rank() == 0 else comm.recv(tensor, 0)
    comm.barrier()
    return float(tensor[0])


def receive_first(world: World[TorchComm]) -> None:
    for rank, seen in enumerate(results(world, _receive_first)):
        expect(seen == (rank - 1) % world.size, f"rank {rank} holds {seen} after a batch with recv listed before send")


def _receive_first(comm: TorchComm) -> float:
    rank, size = comm.get_rank(), comm.get_size()
    mine = torch.full((LONG,), float(rank), device=comm.get_device())
    theirs = torch.empty_like(mine)
    batch = comm.batch_op_create()
    batch.recv(theirs, (rank - 1) % size)
    batch.send(mine, (rank + 1) % size)
    batch.issue(False)
    return float(theirs.mean())


def two_threads(world: World[TorchComm]) -> None:
    second = world.open()  # type: ignore[attr-defined]
    try:
        with ThreadPoolExecutor(2) as threads:
            both = [threads.submit(results, one, _count_up) for one in (world, second)]
            found = [one.result() for one in both]
    finally:
        second.close()
    expect(found == [[""] * world.size] * 2, f"two communicators used at once give {found}")


def _count_up(comm: TorchComm) -> str:
    for number in range(12):
        tensor = torch.full((1 + 500 * number,), float(number), device=comm.get_device())
        comm.all_reduce(tensor, ReduceOp.SUM)
        if not bool((tensor.cpu() == number * comm.get_size()).all()):
            return f"all_reduce {number} gives {float(tensor[0])}"
    return ""


def asynchronous(world: World[TorchComm]) -> None:
    wanted = [float(number * world.size) for number in range(8)]
    for rank, seen in enumerate(results(world, _asynchronous)):
        expect(seen == wanted, f"eight operations in flight on rank {rank} give {seen}, not {wanted}")


def _asynchronous(comm: TorchComm) -> list[float]:
    tensors = [torch.full((1 + 4000 * (number % 3),), float(number), device=comm.get_device()) for number in range(8)]
    works = [comm.all_reduce(tensor, ReduceOp.SUM, async_op=True) for tensor in tensors]
    for work in works if comm.get_rank() else reversed(works):
        work.wait()
    return [float(tensor.mean()) for tensor in tensors]


def death(world: World[TorchComm]) -> float:
    """Milliseconds until the last survivor had its error."""
    outcomes, killed = run_and_kill(world, _until_it_fails, VICTIM, random.uniform(0.03, 0.08))
    worst = 0.0
    for rank, outcome in enumerate(outcomes):
        if rank != VICTIM:
            expect(isinstance(outcome, tuple), f"survivor {rank} raised {outcome!r}")
            error, moment, whole = outcome if isinstance(outcome, tuple) else (None, killed, True)
            expect(isinstance(error, PeerFailed), f"survivor {rank} of a death in a collective got {error!r}")
            expect(VICTIM in getattr(error, "ranks", ()), f"survivor {rank} is not told who died: {error}")
            expect(whole, f"the tensor of survivor {rank} is neither as it was nor reduced")
            worst = max(worst, moment - killed)
    expect(worst < PROMPT, f"a survivor has its error {worst:.1f} s after the death")
    return round(1e3 * worst, 2)


def _until_it_fails(comm: TorchComm) -> tuple[BaseException | None, float, bool]:
    """Reduce for ever; the error, when it came, and whether the tensor is as before the call or completely reduced."""
    tensor, value, until = torch.ones(LONG, device=comm.get_device()), 1.0, soon(4 * PROMPT)
    while time.monotonic() < until:
        try:
            comm.all_reduce(tensor, ReduceOp.MAX)
            tensor.fill_(value := value + 1.0 if comm.get_rank() == 0 else value)
        except Exception as error:
            moment = time.monotonic()
            return error, moment, bool((tensor == tensor[0]).all())
    return None, time.monotonic(), True


def abort(world: World[TorchComm]) -> None:
    started = time.monotonic()
    error = results(world, _abort)[0][0]
    expect(isinstance(error, CommsAborted), f"a wait in a communicator that is aborted gave {error!r}")
    expect(time.monotonic() - started < PROMPT, "the waits return late")


def _abort(comm: TorchComm) -> tuple[BaseException | None]:
    if comm.get_rank():
        return (None,)
    in_background(lambda: comm.abort("the kit says so"))
    try:
        comm.all_reduce(torch.ones(8, device=comm.get_device()), ReduceOp.SUM)
    except Exception as error:
        return (error,)
    return (None,)


def reconfigured(world: World[TorchComm]) -> None:
    """Rank 1 dies; the two that are left form the group anew, in the other order, and go on."""
    handles = results(world, _handle)
    world.kill(1)
    seen = world.run(partial(_form_anew, [handles[2], handles[0]]))
    expect(seen[0] == (1, 2, 1.0) and seen[2] == (0, 2, 1.0), f"(rank, size, sum) of the survivors are {seen[::2]}")


def _handle(comm: TorchComm) -> str:
    return comm.get_init_handle()


def _form_anew(handles: Sequence[str], comm: TorchComm) -> tuple[int, int, float]:
    if comm.get_init_handle() not in handles:
        return -1, 0, 0.0
    try:
        comm.all_reduce(torch.ones(3, device=comm.get_device()), ReduceOp.SUM)
    except PeerFailed:
        comm.abort("rank 1 died")
    comm.reconfigure(UUID, handles, timedelta(seconds=PROMPT))
    tensor = torch.full((3,), float(comm.get_rank()), device=comm.get_device())
    comm.all_reduce(tensor, ReduceOp.SUM)
    return comm.get_rank(), comm.get_size(), float(tensor[0])


def opened_again(world: World[TorchComm]) -> None:
    world.open().close()  # type: ignore[attr-defined]
    before = held_after_collecting(world)
    for number in range(10):
        again = world.open()  # type: ignore[attr-defined]
        try:
            seen = results(again, _sum_up)
        finally:
            again.close()
        expect(seen == [float(world.size)] * world.size, f"communicator {number + 1} over one store: {seen}")
    after = results(world, held)
    expect(after == before, f"(descriptors, threads) went from {before} to {after} over ten communicators")


def _sum_up(comm: TorchComm) -> float:
    tensor = torch.ones(5, device=comm.get_device())
    comm.all_reduce(tensor, ReduceOp.SUM)
    return float(tensor[0])


def dropped(world: World[TorchComm]) -> None:
    results(world, partial(_split_and_drop, 1))
    before = held_after_collecting(world)
    totals = results(world, partial(_split_and_drop, GROUPS))
    expect(totals == [float(world.size * GROUPS)] * world.size, f"sub-groups sum up to {totals}")
    after = results(world, held)
    expect(after == before, f"(descriptors, threads) went from {before} to {after} over {GROUPS} sub-groups")


def _split_and_drop(count: int, comm: TorchComm) -> float:
    total = torch.zeros(1)
    for number in range(count):
        group = comm.split(list(range(comm.get_size())), f"sub{count}.{number}")
        tensor = torch.ones(1, device=comm.get_device())
        if group is not None:
            group.all_reduce(tensor, ReduceOp.SUM)
            group.finalize()
        total += tensor.cpu()
    return float(total)


def _check(name: str, clause: str, function: Callable[[World[TorchComm]], object], **facts: object) -> Check:
    return Check(f"comm.{name}", clause, function, RANKS, **facts)  # type: ignore[arg-type]


CHECKS: Sequence[Check] = (
    _check("pair", "A message of two ranks, then a barrier of all: fine.", pair_then_barrier),
    _check("batch", "A batch with recv listed before send does not deadlock.", receive_first),
    _check("threads", "Two threads may use two communicators at once.", two_threads, needs="open"),
    _check("async", "Operations in flight may be waited for in any order.", asynchronous),
    _check(
        "death", "A death is named to all survivors at once; tensors are as before or reduced.", death, claim=notices
    ),
    _check("abort", "abort ends waits at once.", abort, claim=aborts),
    _check(
        "reconfigure", "Survivors form the group anew; a rank is its place in the list.", reconfigured, claim=notices
    ),
    _check("reopen", "Ten communicators, one after another, leave nothing.", opened_again, needs="open"),
    _check("split", "Sub-groups leave nothing when they are finalized.", dropped),
)
