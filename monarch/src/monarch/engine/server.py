"""Serves the actors of one process: reads calls, runs endpoints where they belong, sends answers.

An actor with only sync endpoints is served by one thread that reads, runs and answers. One with only async endpoints
is served by a loop in that thread. One with both has a loop in a second thread, which reads; its sync endpoints run
in the first, so that a blocking one leaves the loop free.
"""

from __future__ import annotations

import os
import socket
import threading

from monarch.context import enter
from monarch.engine.framing import Frame, Kind
from monarch.engine.hosted import Hosted, create
from monarch.engine.loopserver import serve_async, serve_mixed
from monarch.engine.slab import InSlab, Leases, OutSlab
from monarch.engine.wire import Wire


class Server:
    """All actors of this process. `alarm` is an event descriptor: it fires when answers wait for more."""

    def __init__(self, incoming: InSlab, outgoing: OutSlab) -> None:
        self._incoming, self._outgoing = incoming, Leases(outgoing)
        self.alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wires: set[Wire] = set()
        self._stopping = threading.Event()

    def serve(self, sock: socket.socket) -> None:
        """Serve one actor until its caller closes the socket or the process is stopped."""
        wire = Wire(sock, self._incoming, self._outgoing, self.alarm)
        self._wires.add(wire)
        try:
            first = _first_frame(wire)
            if first is None:
                return
            creation, rest = create(first[0]), first[1:]
            enter(creation.place)
            hosted = Hosted(wire, self._stopping)
            if creation.only_async:
                serve_async(hosted, creation, rest)
            elif creation.any_async:
                hosted.construct(creation)
                serve_mixed(hosted, rest)
            else:
                hosted.construct(creation)
                _serve_sync(hosted, rest)
        finally:
            self._wires.discard(wire)
            wire.close()

    def flush(self) -> None:
        """From another thread: send the answers that wait for more."""
        for wire in list(self._wires):
            wire.flush_if_free()

    def stop(self) -> None:
        """From another thread: run no further calls."""
        self._stopping.set()
        for wire in list(self._wires):
            wire.shut()


def _first_frame(wire: Wire) -> list[Frame] | None:
    while (frames := wire.receive()) is not None:
        if frames:
            assert frames[0].kind == Kind.CREATE
            return frames
    return None


def _serve_sync(hosted: Hosted, frames: list[Frame] | None) -> None:
    wire = hosted.wire
    while frames is not None and not hosted.stopping:
        # Popped one by one: a frame that was run must not keep its buffers on lease.
        frames.reverse()
        while frames and not hosted.stopping:
            hosted.run(frames.pop(), more=bool(frames))
        wire.flush()
        frames = wire.receive()
