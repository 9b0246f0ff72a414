"""Checks of communicators whose ranks do not call the same: named to all at once, with both calls and their lines."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcomms.backend import ReduceOp
from torchcomms.errors import CollectiveMismatch, CommsAborted, CommsTimeout, InvalidCall
from torchcomms.testing.endings import PROMPT
from torchcomms.testing.report import Check, expect
from torchcomms.testing.world import World, results

if TYPE_CHECKING:
    from torchcomms.comm import TorchComm

RANKS = 3
ODD = 1  # the rank that calls something else
LATE = 2  # the rank that does not come
SITE = re.compile(r" at \S+\.py:\d+")

Call = Callable[["TorchComm", Tensor, bool], object]


def length(comm: TorchComm, tensor: Tensor, odd: bool) -> object:
    """Another number of elements."""
    return comm.all_reduce(tensor[:4] if odd else tensor, ReduceOp.SUM)


def long_length(comm: TorchComm, tensor: Tensor, odd: bool) -> object:
    """Another number of elements, of many."""
    long = torch.ones(50_000 + odd, device=comm.get_device())
    return comm.all_reduce(long, ReduceOp.SUM)


def dtype(comm: TorchComm, tensor: Tensor, odd: bool) -> object:
    """Another dtype of the same size."""
    return comm.all_reduce(tensor.view(torch.int32) if odd else tensor, ReduceOp.SUM)


def operation(comm: TorchComm, tensor: Tensor, odd: bool) -> object:
    """Another operation."""
    return comm.broadcast(tensor, 0) if odd else comm.all_reduce(tensor, ReduceOp.SUM)


def order(comm: TorchComm, tensor: Tensor, odd: bool) -> object:
    """Two operations in the other order."""
    if odd:
        return comm.barrier() and comm.all_reduce(tensor, ReduceOp.SUM)
    return comm.all_reduce(tensor, ReduceOp.SUM) and comm.barrier()


def reduction(comm: TorchComm, tensor: Tensor, odd: bool) -> object:
    """Another reduction."""
    return comm.all_reduce(tensor, ReduceOp.PRODUCT if odd else ReduceOp.SUM)


def root(comm: TorchComm, tensor: Tensor, odd: bool) -> object:
    """Another root."""
    return comm.reduce(tensor, 2 if odd else 0, ReduceOp.SUM)


def uneven(comm: TorchComm, tensor: Tensor, odd: bool) -> object:
    """Another list of lengths."""
    lengths = [4, 3, 3] if odd else [3, 3, 3]
    mine = tensor[: lengths[comm.get_rank()]]
    return comm.reduce_scatter(mine.clone(), [tensor[:one] for one in lengths], ReduceOp.SUM)


def attempt(call: Call, comm: TorchComm) -> tuple[BaseException | None, bool, BaseException | None]:
    """What a call that does not fit raises, whether the tensor is as it was, and what the next call raises."""
    mine = comm.get_rank() + 1
    tensor = torch.full((8,), float(mine), device=comm.get_device())
    first = _raised(lambda: call(comm, tensor, comm.get_rank() == ODD))
    kept = bool((tensor.cpu() == mine).all())
    return first, kept, _raised(lambda: comm.barrier())


def _raised(action: Callable[[], object]) -> BaseException | None:
    try:
        action()
    except Exception as error:
        return error
    return None


def named_everywhere(call: Call, world: World[TorchComm]) -> None:
    started = time.monotonic()
    for rank, (error, kept, after) in enumerate(results(world, partial(attempt, call))):
        expect(isinstance(error, CollectiveMismatch), f"rank {rank} got {error!r}")
        calls = getattr(error, "calls", {})
        expect(set(calls) == set(range(RANKS)), f"the calls of ranks {sorted(calls)} are told, not of all")
        expect(calls[ODD] != calls[0] and f"rank {ODD}" in str(error), f"the odd call is not told: {error}")
        expect(all(SITE.search(told) for told in calls.values()), f"the calls are not told with their lines: {calls}")
        expect(kept, f"the tensor of rank {rank} was written, though the ranks did not agree")
        expect(isinstance(after, CommsAborted), f"the next call of rank {rank} gave {after!r}")
    expect(time.monotonic() - started < PROMPT, "the error comes late")


def late(world: World[TorchComm]) -> None:
    for rank, (error,) in enumerate(results(world, _wait_for_nobody)):
        if rank != LATE:
            expect(isinstance(error, CommsTimeout), f"rank {rank}, waiting for rank {LATE}, got {error!r}")
            expect(getattr(error, "missing", None) == {LATE}, f"the error does not name rank {LATE} alone: {error}")
            calls = getattr(error, "calls", {})
            told = {rank, 1 - rank} <= set(calls) and all(SITE.search(calls[one]) for one in (0, 1))
            expect(told, f"the error does not say where the others wait: {error}; {calls}")


def _wait_for_nobody(comm: TorchComm) -> tuple[BaseException | None]:
    if comm.get_rank() == LATE:
        return (None,)
    tensor = torch.ones(8, device=comm.get_device())
    return (_raised(lambda: comm.all_reduce(tensor, ReduceOp.SUM, timeout=timedelta(seconds=0.2))),)


def refused_before(world: World[TorchComm]) -> None:
    """A call that this rank can see to be wrong is refused at once, sends nothing, and the communicator goes on."""
    for rank, (refused, total) in enumerate(results(world, _refuse_and_go_on)):
        expect(refused, f"rank {rank} accepts a root that is no rank, or a list that is too short")
        expect(total == world.size, f"after a refused call, an all_reduce of ones gives {total} on rank {rank}")


def _refuse_and_go_on(comm: TorchComm) -> tuple[bool, float]:
    tensor = torch.ones(3, device=comm.get_device())
    outputs = [tensor.clone()] * (comm.get_size() - 1)
    wrong = [_raised(lambda: comm.broadcast(tensor, 9)), _raised(lambda: comm.all_gather(outputs, tensor))]
    comm.all_reduce(tensor, ReduceOp.SUM)
    return all(isinstance(error, InvalidCall) for error in wrong), float(tensor[0])


def _mismatch(call: Call, what: str) -> Check:
    clause = f"Ranks that differ in {what} all raise CollectiveMismatch with both calls, tensors as they were."
    return Check(f"comm.mismatch_{call.__name__}", clause, partial(named_everywhere, call), RANKS)


CHECKS: Sequence[Check] = (
    _mismatch(length, "length"),
    _mismatch(long_length, "length, of long tensors"),
    _mismatch(dtype, "dtype"),
    _mismatch(operation, "operation"),
    _mismatch(order, "the order of two operations"),
    _mismatch(reduction, "reduction"),
    _mismatch(root, "root"),
    _mismatch(uneven, "the lengths of a list"),
    Check("comm.late", "A timeout names the rank that is missing, and where the others wait.", late, RANKS),
    Check("comm.refused", "A call refused on one rank sends nothing and harms nothing.", refused_before, RANKS),
)
