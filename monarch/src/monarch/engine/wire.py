"""The actor's end of a data socket: blocking, with answers coalesced while more calls are at hand."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress

from monarch.engine.framing import Bytes, Decoder, Frame, Kind, encode
from monarch.engine.pickling import Packed
from monarch.engine.slab import InSlab, Leases

COALESCE = 1 << 14
EMPTY = Packed(b"", [])


class Wire:
    """Receives in one thread, sends from several."""

    def __init__(self, sock: socket.socket, incoming: InSlab, outgoing: Leases, alarm: int) -> None:
        self._sock, self._incoming, self._outgoing, self._alarm = sock, incoming, outgoing, alarm
        self._decoder = Decoder(incoming.adopt)
        self._parts: list[Bytes] = []
        self._unsent = 0
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._sock.fileno()

    def receive(self, flags: int = 0) -> list[Frame] | None:
        """The frames that came, waiting for at least some bytes; None at the end. `flags` are recv's."""
        try:
            count = self._sock.recv_into(self._decoder.space(), 0, flags)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not count:
            return None
        frames = self._decoder.received(count)
        for frame in frames:
            if frame.releases:
                self._outgoing.free(frame.releases)
        return frames

    def send(self, kind: Kind, call: int, message: Packed = EMPTY, *, hold: bool = False) -> None:
        """Send, or with `hold` let it wait for more, until `flush` or the control thread's alarm."""
        with self._lock:
            buffers = [self._outgoing.place(buffer) or buffer for buffer in message.buffers] if message.buffers else ()
            first = not self._parts
            for part in encode(kind, call, message.body, buffers, self._incoming.released()):
                self._parts.append(part)
                self._unsent += len(part)
            if not hold or buffers or self._unsent > COALESCE:
                self._write()
            elif first:
                os.eventfd_write(self._alarm, 1)

    def flush(self) -> None:
        """Send what waits, and the leases that have ended."""
        with self._lock:
            if released := self._incoming.released():
                self._parts += encode(Kind.RELEASE, 0, releases=released)
            self._write()

    def flush_if_free(self) -> None:
        """The same, unless another thread is sending now."""
        if self._lock.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._lock.release()

    def _write(self) -> None:
        parts, self._parts, self._unsent = self._parts, [], 0
        with suppress(OSError):  # the controller is gone: so will be this process
            while parts:
                sent = self._sock.sendmsg(parts[:64])
                while parts and sent >= len(parts[0]):
                    sent -= len(parts.pop(0))
                if sent:
                    parts[0] = memoryview(parts[0])[sent:]

    def shut(self) -> None:
        """Let the receiving thread see the end after what it has."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        self._sock.close()
