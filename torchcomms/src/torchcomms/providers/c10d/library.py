"""The calls of torch.distributed's process groups that the stream-ordered backends make, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from torchcomms.backend import P2P
from torchcomms.providers.c10d.streams import Flight

TOGETHER = "together"
GROUPS = (TOGETHER, "upward", "downward")


def as_bytes(tensor: Tensor) -> Tensor:
    """The flat bytes of a dense tensor: what every library can move, whatever the dtype."""
    return tensor.detach().view(-1).view(torch.uint8)


class Library:
    """Three groups of the same ranks: one for what all do together, two for messages.

    Those to higher ranks have a group of their own, and those to lower ones: the library works a pair's messages off in
    one order, and two ranks that send to each other first would wait for each other for ever. Tensors are flat and not
    empty; every call returns at once with a `Flight`.
    """

    def __init__(self, rank: int, together: Any, upward: Any, downward: Any) -> None:
        self._rank, self._together, self._upward, self._downward = rank, together, upward, downward
        self._latest: dict[object, Flight] = {}
        self.begun = 0  # how many collectives, counted by who calls for them

    def send(self, data: Tensor, peer: int) -> Flight:
        """Send to another rank."""
        group = self._upward if peer > self._rank else self._downward
        return self._flown((peer, "to"), group.send([data], peer, 0))

    def recv(self, data: Tensor, peer: int) -> Flight:
        """Receive from another rank."""
        group = self._upward if peer < self._rank else self._downward
        return self._flown((peer, "from"), group.recv([data], peer, 0))

    def exchange(self, batch: Sequence[P2P]) -> list[Flight]:
        """Messages that all ranks exchange at this place of their program, as one: none waits for another of it."""
        if not batch:
            return []
        group = self._together
        if not group.supports_coalescing:
            return [self._flown(TOGETHER, self._message(message)) for message in batch]
        group._start_coalescing()
        for message in batch:
            self._message(message)
        return [self._flown(TOGETHER, group._end_coalescing())]

    def _message(self, message: P2P) -> Flight:
        move = self._together.send if message.kind == "send" else self._together.recv
        flight: Flight = move([as_bytes(message.tensor)], message.peer, 0)
        return flight

    def broadcast(self, data: Tensor, root: int) -> Flight:
        """Copy `data` of `root` to every rank."""
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._flown(TOGETHER, self._together.broadcast([data], options))

    def all_reduce(self, data: Tensor, op: Any) -> Flight:
        """Reduce in place, on every rank."""
        options = torch.distributed.AllreduceOptions()
        options.reduceOp = op
        return self._flown(TOGETHER, self._together.allreduce([data], options))

    def reduce(self, data: Tensor, root: int, op: Any) -> Flight:
        """Reduce in place on `root`; `data` of the others may be spoiled."""
        options = torch.distributed.ReduceOptions()
        options.reduceOp, options.rootRank, options.rootTensor = op, root, 0
        return self._flown(TOGETHER, self._together.reduce([data], options))

    def all_gather(self, blocks: Sequence[Tensor], data: Tensor) -> Flight:
        """Copy rank r's `data` into `blocks[r]`, all of one length."""
        return self._flown(TOGETHER, self._together.allgather([list(blocks)], [data]))

    def reduce_scatter(self, output: Tensor, parts: Sequence[Tensor], op: Any) -> Flight:
        """Reduce `parts[r]` of all ranks into `output` of rank r, all of one length."""
        options = torch.distributed.ReduceScatterOptions()
        options.reduceOp = op
        return self._flown(TOGETHER, self._together.reduce_scatter([output], [list(parts)], options))

    def _flown(self, order: object, flight: Flight) -> Flight:
        """Note what is in flight: of each order in which the library works, the latest is the last to be done."""
        self._latest[order] = flight
        return flight

    def idle(self) -> bool:
        """Whether nothing is in flight."""
        return all(flight.is_completed() for flight in self._latest.values())

    def end(self, *, at_once: bool) -> None:
        """Release the library's communicators; at once if some work could wait for ever."""
        for group in (self._downward, self._upward, self._together):
            with suppress(RuntimeError):  # a library that has no such call, or has failed already
                group.abort() if at_once else group.shutdown()
