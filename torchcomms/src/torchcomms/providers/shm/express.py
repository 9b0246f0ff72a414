"""The fast lane: a whole collective in one call of the core.

A microsecond pays for some twenty attribute reads, so nothing is made here that only an error would need: an operation
that does not end at once becomes a `Request` then, while its caller is still on the stack.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcomms.providers.shm.call import DTYPES, REDUCTIONS, Kind, Request, dtype_number

if TYPE_CHECKING:
    from torchcomms.backend import ReduceOp
    from torchcomms.providers.shm.native import Group
    from torchcomms.providers.shm.queue import Queue

PLAIN = (Tensor, torch.nn.Parameter)  # a subclass may not have its values at its data pointer
DONE, BUSY, CLOSED = 0, 4, 5


class ShmExpress:
    """`torchcomms.backend.Express` over a group."""

    __slots__ = ("_all_reduce", "_barrier", "_broadcast", "_pending", "_queue", "_rank", "_size", "_timeout")

    def __init__(self, group: Group, queue: Queue, rank: int, size: int, timeout: float) -> None:
        self._all_reduce, self._broadcast, self._barrier = group.all_reduce, group.broadcast, group.barrier
        self._queue, self._pending, self._rank, self._size, self._timeout = queue, queue.pending, rank, size, timeout

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> bool:
        """Done, or False if it has to go the general way."""
        if self._pending or type(tensor) not in PLAIN or not tensor.is_cpu:
            return False
        codes = _CODES.get(tensor.dtype)
        if codes is None or not tensor.is_contiguous() or tensor.is_neg():
            return False
        reduction = codes[1].get(op.kind)
        if reduction is None:
            return False
        status = self._all_reduce(tensor.data_ptr(), tensor.numel(), codes[0], reduction)
        if status == DONE:
            return True
        return self._go_on(status, lambda: Request("all_reduce", Kind.ALL_REDUCE, tensor=tensor, op=op))

    def broadcast(self, tensor: Tensor, root: int) -> bool:
        """Done, or False if it has to go the general way."""
        if self._pending or type(tensor) not in PLAIN or not tensor.is_cpu:
            return False
        codes = _CODES.get(tensor.dtype)
        if codes is None or not tensor.is_contiguous() or tensor.is_neg() or not 0 <= root < self._size:
            return False
        status = self._broadcast(tensor.data_ptr(), tensor.numel(), codes[0], root)
        if status == DONE:
            return True
        return self._go_on(status, lambda: Request("broadcast", Kind.BROADCAST, tensor=tensor, root=root))

    def barrier(self) -> bool:
        """Done, or False if it has to go the general way."""
        if self._pending:
            return False
        status = self._barrier()
        return True if status == DONE else self._go_on(status, lambda: Request("barrier", Kind.BARRIER))

    def _go_on(self, status: int, request: Callable[[], Request]) -> bool:
        if status in (BUSY, CLOSED):
            return False  # in the general way an error is raised or waited out
        self._queue.adopt(request(), status, time.monotonic() + self._timeout)
        return True


def _reductions(dtype: torch.dtype) -> dict[str, int]:
    if dtype is torch.bool:
        usable = REDUCTIONS.keys() - {"avg", "premul_sum"}
    elif dtype.is_floating_point:
        usable = {"sum", "avg", "product", "min", "max"}
    else:
        usable = REDUCTIONS.keys() - {"premul_sum"}
    return {kind: REDUCTIONS[kind] for kind in usable}


# What the core reduces without a factor, by dtype: its number, and the numbers of its reductions.
_CODES = {dtype: (dtype_number(dtype), _reductions(dtype)) for dtype in DTYPES}
