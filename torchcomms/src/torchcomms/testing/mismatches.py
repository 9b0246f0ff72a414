"""Checks of backends that compare the calls of the ranks themselves: `capabilities().mismatch` is "inline"."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from torchcomms.backend import Backend, Capabilities, ReduceOp, Ticket
from torchcomms.errors import CollectiveMismatch
from torchcomms.testing.endings import PROMPT
from torchcomms.testing.operations import finish
from torchcomms.testing.report import Check, expect
from torchcomms.testing.world import World

RANKS = 3
ODD = 1  # the rank that calls something else

Start = Callable[[Backend, Tensor, bool], Ticket]


def length(backend: Backend, tensor: Tensor, odd: bool) -> Ticket:
    """Another number of elements."""
    return backend.all_reduce(tensor[: 4 if odd else 8], ReduceOp.SUM)


def dtype(backend: Backend, tensor: Tensor, odd: bool) -> Ticket:
    """Another dtype of the same size."""
    return backend.all_reduce(tensor.view(torch.int32) if odd else tensor, ReduceOp.SUM)


def operation(backend: Backend, tensor: Tensor, odd: bool) -> Ticket:
    """Another operation."""
    return backend.broadcast(tensor, 0) if odd else backend.all_reduce(tensor, ReduceOp.SUM)


def reduction(backend: Backend, tensor: Tensor, odd: bool) -> Ticket:
    """Another reduction."""
    return backend.all_reduce(tensor, ReduceOp.PRODUCT if odd else ReduceOp.SUM)


def root(backend: Backend, tensor: Tensor, odd: bool) -> Ticket:
    """Another root."""
    return backend.broadcast(tensor, 2 if odd else 0)


def order(backend: Backend, tensor: Tensor, odd: bool) -> Ticket:
    """Two operations in the other order."""
    first = backend.barrier() if odd else backend.all_reduce(tensor, ReduceOp.SUM)
    finish(first)
    return backend.all_reduce(tensor, ReduceOp.SUM) if odd else backend.barrier()


def raised(start: Start, backend: Backend) -> tuple[BaseException | None, bool]:
    """What the call that does not fit raises on this rank, and whether the tensor is as it was."""
    tensor = torch.full((8,), float(backend.rank + 1), device=backend.device)
    try:
        finish(start(backend, tensor, backend.rank == ODD))
    except Exception as error:
        return error, bool((tensor.cpu() == backend.rank + 1).all())
    return None, True


def named_everywhere(start: Start, world: World[Backend]) -> None:
    started = time.monotonic()
    for rank, outcome in enumerate(world.run(partial(raised, start))):
        error, kept = outcome if isinstance(outcome, tuple) else (outcome, True)
        expect(isinstance(error, CollectiveMismatch), f"rank {rank} got {error!r}")
        calls = getattr(error, "calls", {})
        expect(set(calls) == set(range(world.size)), f"the calls of ranks {sorted(calls)} are told, not of all")
        expect(calls[ODD] != calls[0], f"the calls that differ are told in the same words: {calls}")
        expect(kept, f"the tensor of rank {rank} was written, though the ranks did not agree")
    expect(time.monotonic() - started < PROMPT, "the error comes late")


def _inline(capabilities: Capabilities) -> str:
    return "" if capabilities.mismatch == "inline" else f"capabilities().mismatch is {capabilities.mismatch!r}"


def _check(start: Start, what: str) -> Check:
    clause = f"Ranks that differ in {what} all raise CollectiveMismatch, with the calls of all, tensors untouched."
    return Check(f"mismatch.{start.__name__}", clause, partial(named_everywhere, start), RANKS, _inline)


CHECKS: Sequence[Check] = (
    _check(length, "length"),
    _check(dtype, "dtype"),
    _check(operation, "operation"),
    _check(reduction, "reduction"),
    _check(root, "root"),
    _check(order, "order"),
)
