"""The collectives over the core: each a request in the queue.

A dtype that the core cannot reduce (complex, 8-bit floats) is moved by it and reduced by torch, in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from torchcomms.algorithms import reduction
from torchcomms.algorithms.messages import check_list, check_root, check_same, flat
from torchcomms.errors import UnsupportedReduction
from torchcomms.providers.shm.call import DTYPES, Kind, Request
from torchcomms.providers.shm.mesh import Mesh

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import ReduceOp
    from torchcomms.providers.shm.queue import Queue, ShmTicket

NATIVE = frozenset(kind.name.lower() for kind in Kind if kind != Kind.TELL)


class Collectives(Mesh):
    """The derived operations, overridden."""

    queue: Queue

    def broadcast(self, tensor: Tensor, root: int, *, deadline: float | None = None) -> ShmTicket:
        check_root(self, root)
        return self._enqueue(Request("broadcast", Kind.BROADCAST, tensor=flat(tensor), root=root), deadline)

    def all_reduce(self, tensor: Tensor, op: ReduceOp, *, deadline: float | None = None) -> ShmTicket:
        return self._reducing("all_reduce", Kind.ALL_REDUCE, tensor, op, 0, deadline)

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp, *, deadline: float | None = None) -> ShmTicket:
        check_root(self, root)
        return self._reducing("reduce", Kind.REDUCE, tensor, op, root, deadline)

    def scan(self, tensor: Tensor, op: ReduceOp, *, deadline: float | None = None) -> ShmTicket:
        if op.kind == "avg":
            raise UnsupportedReduction("avg has no scan: scan with sum and divide by rank + 1", op="avg")
        return self._reducing("scan", Kind.SCAN, tensor, op, 0, deadline)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor, *, deadline: float | None = None) -> ShmTicket:
        blocks = [flat(output) for output in check_list(self, outputs, "outputs")]
        check_same(blocks[self.rank], tensor, f"outputs[{self.rank}]")
        return self._enqueue(Request("all_gather", Kind.ALL_GATHER, tensor=flat(tensor), outs=blocks), deadline)

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, *, deadline: float | None = None
    ) -> ShmTicket:
        check_list(self, inputs, "inputs")
        check_same(output, inputs[self.rank], "output")
        reduction.check(op, output.dtype)
        target, sources = flat(output), [flat(one) for one in inputs]
        if target.dtype in DTYPES:
            work, finish = _aligned(target)
            ins = [_aligned(source)[0] for source in sources]
            request = Request("reduce_scatter", Kind.REDUCE_SCATTER, tensor=work, ins=ins, op=op, finish=finish)
        else:
            parts = [torch.empty_like(target) for _ in range(self.size)]
            request = Request("reduce_scatter", Kind.ALL_TO_ALL, ins=sources, outs=parts, op=op)
            request.fold(Kind.REDUCE_SCATTER, lambda: reduction.fold(op, parts, target))
        return self._enqueue(request, deadline)

    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *, deadline: float | None = None
    ) -> ShmTicket:
        targets = [flat(one) for one in check_list(self, outputs, "outputs")]
        sources = [flat(one) for one in check_list(self, inputs, "inputs")]
        check_same(targets[self.rank], sources[self.rank], f"outputs[{self.rank}]")
        return self._enqueue(Request("all_to_all", Kind.ALL_TO_ALL, ins=sources, outs=targets), deadline)

    def gather(
        self, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int, *, deadline: float | None = None
    ) -> ShmTicket:
        check_root(self, root)
        targets = None
        if self.rank == root:
            targets = [flat(one) for one in check_list(self, outputs, "outputs of the root")]
            check_same(targets[root], tensor, f"outputs[{root}]")
        return self._enqueue(Request("gather", Kind.GATHER, tensor=flat(tensor), outs=targets, root=root), deadline)

    def scatter(
        self, output: Tensor, inputs: Sequence[Tensor] | None, root: int, *, deadline: float | None = None
    ) -> ShmTicket:
        check_root(self, root)
        sources = None
        if self.rank == root:
            sources = [flat(one) for one in check_list(self, inputs, "inputs of the root")]
            check_same(output, sources[root], "output")
        return self._enqueue(Request("scatter", Kind.SCATTER, tensor=flat(output), ins=sources, root=root), deadline)

    def barrier(self, *, deadline: float | None = None) -> ShmTicket:
        return self._enqueue(Request("barrier", Kind.BARRIER), deadline)

    def _enqueue(self, request: Request, deadline: float | None) -> ShmTicket:
        return self.queue.start(request, time.monotonic() + self.timeout if deadline is None else deadline)

    def _reducing(
        self, name: str, kind: Kind, tensor: Tensor, op: ReduceOp, root: int, deadline: float | None
    ) -> ShmTicket:
        reduction.check(op, tensor.dtype)
        data = flat(tensor)
        written = kind != Kind.REDUCE or self.rank == root
        if data.dtype in DTYPES:
            work, finish = _aligned(data) if written else (_aligned(data)[0], None)
            return self._enqueue(Request(name, kind, tensor=work, op=op, root=root, finish=finish), deadline)
        parts = [torch.empty_like(data) for _ in range(self.size)]
        used = parts[: self.rank + 1] if kind == Kind.SCAN else parts
        finish = (lambda: reduction.fold(op, used, data)) if written else None
        moved, outs = (Kind.GATHER, parts if written else None) if kind == Kind.REDUCE else (Kind.ALL_GATHER, parts)
        request = Request(name, moved, tensor=data, outs=outs, op=op, root=root)
        request.fold(kind, finish)
        return self._enqueue(request, deadline)


def _aligned(data: Tensor) -> tuple[Tensor, Callable[[], None] | None]:
    """The tensor, or a copy where C may read it, and what writes that back: memory from elsewhere may lie anyhow."""
    if data.data_ptr() % data.element_size() == 0:
        return data, None
    work = data.clone()

    def finish() -> None:
        data.copy_(work)

    return work, finish
