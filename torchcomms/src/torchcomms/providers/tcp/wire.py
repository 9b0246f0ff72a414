"""The wire format as a state machine: bytes in, arrivals out. No I/O.

A frame is a header (kind, tag, length; little-endian) and `length` bytes: a message, or the goodbye of a rank with the
ranks whose death makes it leave. `FrameReader` says where the next bytes should go, so that long messages land in the
receiver's tensor straight from the socket. At a long message that nobody expects it stalls until `resume`; nothing more
may be read before.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from torchcomms.providers.inbox import Arrival, Inbox

HEADER = struct.Struct("<B7xqQ")
DATA, GOODBYE = 1, 2
NAMED = 1024  # ranks that a goodbye names at most
STAGE = 16 << 10  # bytes read ahead: a short message costs one read, header and all


def data_header(tag: int, length: int) -> bytes:
    """The header of a message."""
    return HEADER.pack(DATA, tag, length)


def goodbye(lost: Iterable[int] = ()) -> bytes:
    """The frame of a rank that leaves in order; `lost` are the dead ranks that it knows of."""
    named = sorted(lost)[:NAMED]
    ranks = struct.pack(f"<{len(named)}I", *named)
    return HEADER.pack(GOODBYE, 0, len(ranks)) + ranks


class FrameReader:
    """Cuts one peer's byte stream into messages for its inbox; `blamed` are the ranks that its goodbye calls dead."""

    __slots__ = ("_arrival", "_filled", "_rest", "_stage", "blamed", "inbox", "said_goodbye", "stalled")

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.blamed: frozenset[int] = frozenset()
        self.said_goodbye = self.stalled = False
        self._stage = memoryview(bytearray(STAGE))
        self._filled = 0
        self._arrival: Arrival | None = None
        self._rest = self._stage[:0]

    def space(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        return self._rest if self._arrival is not None else self._stage[self._filled :]

    def advance(self, count: int) -> None:
        """`count` bytes were put into `space()`."""
        if self._arrival is not None:
            self._rest = self._rest[count:]
            if not self._rest:
                self._finish(self._arrival)
        else:
            self._filled += count
            self._parse(patient=True)

    def resume(self) -> None:
        """Take the long message that was left standing, expected by now or not."""
        self.stalled = False
        self._parse(patient=False)

    def _parse(self, *, patient: bool) -> None:
        start, end = 0, self._filled
        while self._arrival is None and end - start >= HEADER.size:
            kind, tag, length = HEADER.unpack_from(self._stage, start)
            # A long message often comes just before its receive is posted: standing by saves memory and a copy.
            if patient and length > STAGE and not self.inbox.expects(tag):
                self.stalled = True
                break
            if kind == GOODBYE and end - start < HEADER.size + length:
                break
            start += HEADER.size
            if kind == GOODBYE:
                self.said_goodbye = True
                self.blamed = frozenset(struct.unpack(f"<{length // 4}I", self._stage[start : start + length]))
                start += length
            else:
                start += self._begin(self.inbox.arrive(tag, length), start, min(length, end - start))
        self._filled = end - start
        if start and self._filled:
            self._stage[: self._filled] = bytes(self._stage[start:end])

    def _begin(self, arrival: Arrival, start: int, ready: int) -> int:
        target = arrival.target
        target[:ready] = self._stage[start : start + ready]
        if ready == target.nbytes:
            self._finish(arrival)
        else:
            self._arrival, self._rest = arrival, target[ready:]
        return ready

    def _finish(self, arrival: Arrival) -> None:
        self._arrival = None
        self._rest = self._stage[:0]
        arrival.finish()
