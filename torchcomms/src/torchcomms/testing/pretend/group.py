"""A pretend library: a process group by torch's interface, as strict as the vendors' are.

It works off what it is given in order, one order for each pair's messages and one for everything else, and a send
stays in the way of the next until its receive is at the same place on the other side. It has few dtypes and reductions,
rounds halves at every step, and gives no sign of a dead peer.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchcomms.testing.pretend.device import PretendTensor
from torchcomms.testing.pretend.stream import Lane, Launch

TURN = 0.02  # seconds between two looks whether the group was aborted
_FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}
_DTYPES = frozenset(
    {torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64}
)


class Exchange:
    """What the ranks of some groups pass each other, each group, pair and place in its own slot."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.sent: dict[object, deque[tuple[Tensor, threading.Event]]] = {}
        self.given: dict[object, dict[int, Tensor]] = {}


class PretendGroup:
    """One rank of a group."""

    supports_coalescing = True

    def __init__(self, exchange: Exchange, name: str, rank: int, size: int) -> None:
        self._exchange, self._name, self._rank, self._size = exchange, name, rank, size
        self._lanes: dict[object, Lane] = {}
        self._aborted = False
        self._turn = 0
        self._batch: list[tuple[str, Tensor, int]] | None = None

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Launch | None:
        """As torch's; in a coalescing block nothing is started yet."""
        return self._message("send", tensors, peer)

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Launch | None:
        """As torch's."""
        return self._message("recv", tensors, peer)

    def _message(self, kind: str, tensors: list[Tensor], peer: int) -> Launch | None:
        (held,) = _held(tensors)
        if self._batch is not None:
            self._batch.append((kind, held, peer))
            return None
        return self._launch(frozenset({self._rank, peer}), lambda: self._swap([(kind, held, peer)], "alone"))

    def _start_coalescing(self) -> None:
        self._batch = []

    def _end_coalescing(self) -> Launch:
        batch, self._batch = self._batch or [], None
        return self._launch("together", lambda: self._swap(batch, "together"))

    def _swap(self, batch: Sequence[tuple[str, Tensor, int]], where: str) -> None:
        taken = [self._put((self._name, where, self._rank, peer), held) for kind, held, peer in batch if kind == "send"]
        for kind, held, peer in batch:
            if kind == "recv":
                self._take((self._name, where, peer, self._rank), held)
        for event in taken:
            self._until(event.is_set)

    def _put(self, slot: object, held: Tensor) -> threading.Event:
        taken = threading.Event()
        with self._exchange.changed:
            self._exchange.sent.setdefault(slot, deque()).append((held, taken))
            self._exchange.changed.notify_all()
        return taken

    def _take(self, slot: object, target: Tensor) -> None:
        self._until(lambda: bool(self._exchange.sent.get(slot)))
        with self._exchange.changed:
            held, taken = self._exchange.sent[slot].popleft()
            target.copy_(held)  # raises if the lengths differ; a real library would not say so
            taken.set()
            self._exchange.changed.notify_all()

    def broadcast(self, tensors: list[Tensor], options: Any) -> Launch:
        """As torch's."""
        (data,) = _held(tensors)
        return self._together(data, lambda all_of: data.copy_(all_of[options.rootRank]))

    def allreduce(self, tensors: list[Tensor], options: Any) -> Launch:
        """As torch's."""
        (data,) = _held(tensors)
        return self._together(data, lambda all_of: data.copy_(_reduced(all_of, options.reduceOp)))

    def reduce(self, tensors: list[Tensor], options: Any) -> Launch:
        """As torch's; like gloo, it spoils the tensors of the others."""
        (data,) = _held(tensors)
        root = options.rootRank == self._rank

        def finish(all_of: Sequence[Tensor]) -> None:
            data.copy_(_reduced(all_of, options.reduceOp)) if root else data.zero_()

        return self._together(data, finish)

    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor]) -> Launch:
        """As torch's, for equal lengths."""
        (data,), blocks = _held(tensors), _held(outputs[0])

        def finish(all_of: Sequence[Tensor]) -> None:
            for block, one in zip(blocks, all_of, strict=True):
                block.copy_(one)

        return self._together(data, finish)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], options: Any) -> Launch:
        """As torch's, for equal lengths."""
        (output,), parts = _held(outputs), torch.stack(_held(inputs[0]))

        def finish(all_of: Sequence[Tensor]) -> None:
            output.copy_(_reduced([one[self._rank] for one in all_of], options.reduceOp))

        return self._together(parts, finish)

    def _together(self, data: Tensor, finish: Callable[[Sequence[Tensor]], object]) -> Launch:
        self._turn += 1
        place = (self._name, self._turn)

        def work() -> None:
            finish(self._gathered(place, data))

        return self._launch("together", work)

    def _gathered(self, place: object, data: Tensor) -> list[Tensor]:
        """What every rank has given at this place of the program."""
        given = self._exchange.given
        with self._exchange.changed:
            given.setdefault(place, {})[self._rank] = data.clone()
            self._exchange.changed.notify_all()
        self._until(lambda: len(given[place]) == self._size)
        return [given[place][rank] for rank in range(self._size)]

    def _until(self, ready: Callable[[], bool]) -> None:
        with self._exchange.changed:
            while not ready():
                if self._aborted:
                    raise RuntimeError("the pretend library was aborted")
                self._exchange.changed.wait(TURN)

    def _launch(self, lane: object, work: Callable[[], None]) -> Launch:
        if self._aborted:
            raise RuntimeError("the pretend library was aborted")
        if lane not in self._lanes:
            self._lanes[lane] = Lane()
        return self._lanes[lane].launch(work)

    def abort(self) -> None:
        """As torch's: what is in flight fails."""
        self._aborted = True
        self.shutdown()

    def shutdown(self) -> None:
        """As torch's."""
        while self._lanes:
            self._lanes.popitem()[1].end()


def _held(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The memory of pretend tensors; refuses what a vendor's library refuses."""
    held = []
    for tensor in tensors:
        if not isinstance(tensor, PretendTensor) or tensor.dtype not in _DTYPES or not tensor.is_contiguous():
            raise RuntimeError(f"the pretend library takes dense tensors of the pretend device, not {tensor!r}")
        held.append(tensor.held)
    return held


def _reduced(parts: Sequence[Tensor], op: Any) -> Tensor:
    """Rounding at every step."""
    if op == dist.ReduceOp.PREMUL_SUM:
        scaled = [part * float(op.factor) for part in parts]
        return reduce(torch.add, scaled)
    if op == dist.ReduceOp.AVG:
        return _reduced(parts, dist.ReduceOp.SUM).div_(len(parts))
    kinds = [function for name, function in _FUNCTIONS.items() if op == getattr(dist.ReduceOp, name)]
    if not kinds:
        raise RuntimeError(f"the pretend library has no reduction {op}")
    total: Tensor = reduce(kinds[0], parts)
    return total
