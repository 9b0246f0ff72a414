"""The fast lane: a whole collective in one call of the core.

A microsecond pays for some fifteen attribute reads, so nothing is made here that only an error would need: an operation
that does not end at once becomes a `Request` then, while its caller is still on the stack.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

from torchcomms.providers.shm.call import DTYPES, REDUCTIONS, Kind, Request

if TYPE_CHECKING:
    from torchcomms.backend import Backend, ReduceOp
    from torchcomms.providers.shm.native import Group
    from torchcomms.providers.shm.queue import Queue

BUSY, CLOSED = 4, 5  # of call.Status


class ShmExpress:
    """`torchcomms.backend.Express` over a group."""

    __slots__ = ("_all_reduce", "_backend", "_barrier", "_broadcast", "_pending", "_queue", "_size")

    def __init__(self, group: Group, queue: Queue, size: int, backend: Backend) -> None:
        """`backend` (a proxy of the owner) knows the timeout of the moment."""
        self._all_reduce, self._broadcast, self._barrier = group.all_reduce, group.broadcast, group.barrier
        self._queue, self._pending, self._size, self._backend = queue, queue.pending, size, backend

    def all_reduce(self, tensor: Tensor, op: ReduceOp) -> bool:
        """Done, or False if it has to go the general way."""
        # A subclass of Tensor may not have its values at its data pointer.
        if self._pending or (type(tensor) is not Tensor and type(tensor) is not Parameter) or not tensor.is_cpu:
            return False
        try:
            code = _CODES[tensor.dtype][op.kind]
        except KeyError:
            return False
        count = tensor.numel()
        # Imaginary parts of conjugates are lazily negated, and contiguous only if there is just one.
        if not tensor.is_contiguous() or (count == 1 and tensor.is_neg()):
            return False
        status = self._all_reduce(tensor.data_ptr(), count, code)
        return self._go_on(status, Kind.ALL_REDUCE, tensor, op, 0) if status else True

    def broadcast(self, tensor: Tensor, root: int) -> bool:
        """Done, or False if it has to go the general way."""
        if self._pending or (type(tensor) is not Tensor and type(tensor) is not Parameter) or not tensor.is_cpu:
            return False
        number, count = DTYPES.get(tensor.dtype), tensor.numel()
        if number is None or not tensor.is_contiguous() or (count == 1 and tensor.is_neg()):
            return False
        if not 0 <= root < self._size:
            return False
        status = self._broadcast(tensor.data_ptr(), count, number, root)
        return self._go_on(status, Kind.BROADCAST, tensor, None, root) if status else True

    def barrier(self) -> bool:
        """Done, or False if it has to go the general way."""
        if self._pending:
            return False
        status = self._barrier()
        return self._go_on(status, Kind.BARRIER, None, None, 0) if status else True

    def _go_on(self, status: int, kind: Kind, tensor: Tensor | None, op: ReduceOp | None, root: int) -> bool:
        if status in (BUSY, CLOSED):
            return False  # in the general way an error is raised or waited out
        request = Request(kind.name.lower(), kind, tensor=tensor, op=op, root=root)
        self._queue.adopt(request, status, time.monotonic() + self._backend.timeout)
        return True


def _codes(dtype: torch.dtype) -> dict[str, int]:
    """The core's numbers of a dtype's reductions without a factor."""
    kinds = REDUCTIONS.keys() - {"premul_sum"}
    if dtype is torch.bool:
        kinds -= {"avg"}
    elif dtype.is_floating_point:
        kinds -= {"band", "bor", "bxor"}
    return {kind: DTYPES[dtype] + 256 * REDUCTIONS[kind] for kind in kinds}


_CODES = {dtype: _codes(dtype) for dtype in DTYPES}
