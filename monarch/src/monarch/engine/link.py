"""The caller's end of one actor's data socket: sends calls in order, within credits, and hands answers on."""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from itertools import islice

from monarch.engine.calls import CallTable, Pending, Sink
from monarch.engine.credits import Credits
from monarch.engine.framing import Bytes, Decoder, Frame, Kind, encode
from monarch.engine.pickling import Packed
from monarch.engine.reactor import Reactor
from monarch.engine.slab import InSlab, Leases

LIMIT_BYTES, LIMIT_MESSAGES = 32 << 20, 4096
COALESCE = 1 << 14
"""Bytes that wait for more while answers are outstanding."""


class Link:
    """One actor on one rank, as its caller sees it. Used from several threads."""

    def __init__(self, reactor: Reactor, sock: socket.socket, outgoing: Leases, incoming: InSlab) -> None:
        sock.setblocking(False)
        self._reactor, self._sock = reactor, sock
        self._outgoing, self._incoming = outgoing, incoming
        self._decoder = Decoder(incoming.adopt)
        self._calls = CallTable()
        self._credits = Credits(LIMIT_BYTES, LIMIT_MESSAGES)
        self._backlog: deque[tuple[Kind, Packed, Pending]] = deque()
        self._parts: deque[Bytes] = deque()
        self._unsent = 0
        self._lock = threading.Lock()
        self._blocked = False  # whether the socket is full; it will say when it is not
        self._loss: Callable[[str, bool], Exception] | None = None
        reactor.register(sock.fileno(), select.EPOLLIN, self._ready)

    @property
    def load(self) -> int:
        """Calls under way."""
        return len(self._calls)

    @property
    def blocked(self) -> bool:
        """Whether something waits for credit."""
        return bool(self._backlog)

    def post(self, kind: Kind, message: Packed, endpoint: str, sink: Sink) -> None:
        """Send, or keep until there is credit. A CAST is settled with an empty frame when it is handed over.

        The sink gets the error at once where the actor is lost.
        """
        with self._lock:
            loss = self._loss
            if loss is None:
                pending = Pending(sink, message.size, endpoint)
                if self._backlog or not self._credits.take(pending.size):
                    self._backlog.append((kind, message.detached(), pending))
                    return
                self._send(kind, message, pending)
        if loss is not None:
            sink(loss(endpoint, False))
        elif kind is Kind.CAST:
            sink(_HANDED_OVER)

    def lose(self, loss: Callable[[str, bool], Exception]) -> None:
        """The actor is no more: settle every call. `loss(endpoint, under_way)` makes the error of one call."""
        with self._lock:
            if self._loss is not None:
                return
            self._loss = loss
            self._reactor.unregister(self._sock.fileno())
            self._sock.close()
            under_way = self._calls.drain()
            waiting = [pending for _, _, pending in self._backlog]
            self._backlog.clear()
            self._parts.clear()
        for pending in under_way:
            pending.sink(loss(pending.endpoint, True))
        for pending in waiting:
            pending.sink(loss(pending.endpoint, False))

    # --- sending, with the lock held ---------------------------------------------------------------------------

    def _send(self, kind: Kind, message: Packed, pending: Pending) -> None:
        alone = not len(self._calls)
        call = 0
        if kind is Kind.CAST:
            self._credits.cast(pending.size)
        else:
            call = self._calls.open(pending)
        if self._blocked:
            message = message.detached()
        buffers = [self._outgoing.place(buffer) or buffer for buffer in message.buffers] if message.buffers else ()
        for part in encode(kind, call, message.body, buffers, self._incoming.released()):
            self._parts.append(part)
            self._unsent += len(part)
        if self._blocked:
            return
        # Buffers are the caller's memory: they go now, or are copied.
        if alone or buffers or self._unsent > COALESCE:
            self._write()
        else:
            self._reactor.flush_soon(self.flush)

    def _write(self) -> None:
        parts = self._parts
        try:
            while parts:
                sent = self._sock.sendmsg(islice(parts, 64))
                self._unsent -= sent
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.popleft())
                if sent:
                    parts[0] = memoryview(parts[0])[sent:]
        except BlockingIOError:
            # The rest goes later, when its caller may have changed the memory.
            self._parts = deque(bytes(part) for part in parts)
        except OSError:
            # The peer is gone; its death is reported by another way.
            self._parts.clear()
        if self._blocked != bool(self._parts):
            self._blocked = bool(self._parts)
            events = select.EPOLLIN | (select.EPOLLOUT if self._blocked else 0)
            self._reactor.modify(self._sock.fileno(), events)

    def flush(self) -> None:
        """Write what waits for more."""
        with self._lock:
            if self._loss is None and self._parts:
                self._write()

    # --- receiving, in the driving thread ----------------------------------------------------------------------

    def _ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self.flush()
        if not events & ~select.EPOLLOUT:
            return
        try:
            count = self._sock.recv_into(self._decoder.space())
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            # Nothing more will come; whether the process died is for its pidfd to say.
            self._reactor.unregister(self._sock.fileno())
            return
        for frame in self._decoder.received(count):
            self._take(frame)
        if self._backlog:
            self._release_backlog()

    def _take(self, frame: Frame) -> None:
        with self._lock:
            if frame.releases:
                self._outgoing.free(frame.releases)
            if frame.kind == Kind.CREDIT:
                self._credits.acknowledge(frame.call)
            pending = self._calls.take(frame.call) if frame.kind in (Kind.VALUE, Kind.ERROR) else None
            if pending is not None:
                self._credits.give(pending.size)
        if pending is not None:
            pending.sink(frame)

    def _release_backlog(self) -> None:
        handed_over = []
        with self._lock:
            while self._backlog and self._loss is None and self._credits.take(self._backlog[0][2].size):
                kind, message, pending = self._backlog.popleft()
                self._send(kind, message, pending)
                if kind is Kind.CAST:
                    handed_over.append(pending)
        for pending in handed_over:
            pending.sink(_HANDED_OVER)


_HANDED_OVER = Frame(Kind.VALUE, 0, b"", [])
"""What a CAST is settled with."""
