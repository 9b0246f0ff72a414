"""`StreamBackend`: what the backends over vendors' libraries do alike, in the order of the device's streams."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from torchcomms.algorithms.messages import check_list, check_root, check_same
from torchcomms.algorithms.reduction import check
from torchcomms.backend import P2P, ReduceOp, Ticket
from torchcomms.errors import CommsAborted, CommsClosed, InvalidCall, InvalidState, UnsupportedReduction
from torchcomms.providers.c10d.base import C10dBackend
from torchcomms.providers.c10d.library import Library
from torchcomms.providers.c10d.mail import Mail
from torchcomms.providers.c10d.reductions import Dialect
from torchcomms.providers.c10d.streams import Flight, Streams
from torchcomms.providers.c10d.ticket import Needs, StreamTicket
from torchcomms.providers.c10d.together import Together
from torchcomms.providers.c10d.watch import Watch
from torchcomms.providers.tcp import TcpBackend


class StreamBackend(C10dBackend):
    """Device tensors over a vendor's library; CPU tensors go over the control channel, which is slow.

    A ticket's `wait` orders the current stream and needs no deadline; `wait_host` and `test` ask the device. Messages
    are matched on the host (`mail`), so that ordering a stream after a receive blocks until its sender has come, and a
    graph can capture collectives but no messages. Reductions of floats are the library's: the same bits on every rank,
    but in its own order, halves rounded at every step, NaN as it likes; with the option `exact` they are the
    contract's. After a death, host waits end; what the device itself waits for ends with `abort` or `close`.
    """

    def __init__(self, library: Library, control: TcpBackend, streams: Streams, dialect: Dialect, device: str) -> None:
        self.rank, self.size, self.device, self.timeout = control.rank, control.size, device, control.timeout
        self._library, self._control, self._streams = library, control, streams
        self._together = Together(library, streams, dialect, self.rank, self.size)
        self._others = frozenset(range(self.size)) - {self.rank}
        self._watch = Watch(control)
        self._mail = Mail(library, control, streams, self._watch)
        self._finalizer = weakref.finalize(self, _release, os.getpid(), self._watch, self._mail, library, control)

    def post(self, batch: Sequence[P2P]) -> Ticket:
        self._watch.check()
        for message in batch:
            if not 0 <= message.peer < self.size:
                raise InvalidCall(f"peer {message.peer} is not a rank of this group of {self.size}")
        on_host = [message for message in batch if message.tensor.device.type == "cpu"]
        if len(on_host) == len(batch):
            return self._control.post(batch)
        if self._streams.capturing():
            raise InvalidState("a graph cannot capture messages, which the host matches: capture collectives only")
        on_device = [message for message in batch if message.tensor.device.type != "cpu"]
        on_device.sort(key=lambda message: message.kind == "send")  # what comes finds its place
        beside = [self._control.post(on_host)] if on_host else []
        flights = self._guarded(lambda: [self._mail.post(message) for message in on_device])
        peers = frozenset(message.peer for message in batch)
        return StreamTicket(self._watch, flights, Needs(peers, lambda: peers), self._mail.advance, beside)

    def broadcast(self, tensor: Tensor, root: int, *, deadline: float | None = None) -> Ticket:
        check_root(self, root)
        return self._begin(lambda: self._together.broadcast(tensor, root))

    def all_reduce(self, tensor: Tensor, op: ReduceOp, *, deadline: float | None = None) -> Ticket:
        check(op, tensor.dtype)
        return self._begin(lambda: self._together.all_reduce(tensor, op))

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp, *, deadline: float | None = None) -> Ticket:
        check_root(self, root)
        check(op, tensor.dtype)
        return self._begin(lambda: self._together.reduce(tensor, root, op))

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor, *, deadline: float | None = None) -> Ticket:
        check_list(self, outputs, "outputs")
        check_same(outputs[self.rank], tensor, f"outputs[{self.rank}]")
        return self._begin(lambda: self._together.all_gather(outputs, tensor))

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, *, deadline: float | None = None
    ) -> Ticket:
        check_list(self, inputs, "inputs")
        check_same(output, inputs[self.rank], "output")
        check(op, output.dtype)
        return self._begin(lambda: self._together.reduce_scatter(output, inputs, op))

    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *, deadline: float | None = None
    ) -> Ticket:
        check_list(self, outputs, "outputs")
        check_list(self, inputs, "inputs")
        check_same(outputs[self.rank], inputs[self.rank], f"outputs[{self.rank}]")
        return self._begin(lambda: self._together.swap(outputs, inputs))

    def gather(
        self, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int, *, deadline: float | None = None
    ) -> Ticket:
        check_root(self, root)
        if self.rank != root:
            return self._begin(lambda: self._together.gather([], tensor, root))
        blocks = check_list(self, outputs, "outputs of the root")
        check_same(blocks[root], tensor, f"outputs[{root}]")
        return self._begin(lambda: self._together.gather(blocks, tensor, root))

    def scatter(
        self, output: Tensor, inputs: Sequence[Tensor] | None, root: int, *, deadline: float | None = None
    ) -> Ticket:
        check_root(self, root)
        if self.rank != root:
            return self._begin(lambda: self._together.scatter(output, [], root))
        blocks = check_list(self, inputs, "inputs of the root")
        check_same(output, blocks[root], "output")
        return self._begin(lambda: self._together.scatter(output, blocks, root))

    def scan(self, tensor: Tensor, op: ReduceOp, *, deadline: float | None = None) -> Ticket:
        if op.kind == "avg":
            raise UnsupportedReduction("avg has no scan: scan with sum and divide by rank + 1", op="avg")
        check(op, tensor.dtype)
        return self._begin(lambda: self._together.scan(tensor, op))

    def barrier(self, *, deadline: float | None = None) -> Ticket:
        self._watch.check()
        return self._control.barrier(deadline=deadline)

    def lost(self) -> frozenset[int]:
        return self._watch.lost()

    def abort(self, reason: str) -> None:
        self._watch.end(CommsAborted(f"aborted on this rank: {reason}", reason=reason))
        self._control.abort(reason)
        self._library.end(at_once=True)

    def close(self) -> None:
        self._watch.end(CommsClosed(f"this {self.name} backend is closed; open a new one"))
        self._finalizer()

    def _begin(self, start: Callable[[], list[Flight]]) -> StreamTicket:
        """Begin a collective, the next of this group's program."""
        self._watch.check(self._others)
        self._library.begun += 1
        needs = Needs(self._others, partial(self._mail.missing, self._library.begun))
        return StreamTicket(self._watch, self._guarded(start), needs, self._mail.advance)

    def _guarded(self, start: Callable[[], list[Flight]]) -> list[Flight]:
        try:
            return start()
        except RuntimeError as error:
            raise self._watch.explain(error) from error


def _release(owner: int, watch: Watch, mail: Mail, library: Library, control: TcpBackend) -> None:
    # A forked child has no device and none of the threads: it only lets go of the control channel.
    if os.getpid() == owner:
        watch.end(CommsClosed("this backend is closed; open a new one"))
        mail.close()
        library.end(at_once=not library.idle())
    control.close()
