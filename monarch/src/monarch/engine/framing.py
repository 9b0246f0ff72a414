"""Frames on a data socket: the byte layout, and a decoder that says where the next bytes belong. No I/O.

A frame is a header, a table of buffers, the offsets of slab regions that the sender gives back, a pickle, and those
buffers that are not in shared memory. Little-endian.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any

HEADER = Struct("<BxxxIIQQ")  # kind, buffers, releases, call, length of the body
BUFFER = Struct("<qQ")  # offset in the sender's slab or INLINE, length
RELEASE = Struct("<Q")  # offset in the receiver's slab
INLINE = -1
SCRATCH = 1 << 18
DIRECT = 1 << 15
"""Parts of at least this many bytes are received in place, without a copy through the scratch buffer."""

Bytes = bytes | bytearray | memoryview


class Kind(IntEnum):
    """What a frame means. CREATE, CALL and CAST go to an actor; VALUE, ERROR and CREDIT come from it."""

    CREATE = 1
    CALL = 2
    CAST = 3
    VALUE = 4
    ERROR = 5
    CREDIT = 6
    RELEASE = 7


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes in the sender's slab."""

    offset: int
    length: int


@dataclass(slots=True)
class Frame:
    """One message as it arrived; `buffers` are what the pickle in `body` refers to out of band."""

    kind: int
    call: int
    body: Bytes
    buffers: list[Any]
    releases: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of payload."""
        return len(self.body) + sum(len(buffer) for buffer in self.buffers)


def encode(
    kind: int, call: int, body: Bytes = b"", buffers: Sequence[Bytes | Region] = (), releases: Sequence[int] = ()
) -> list[Bytes]:
    """The parts of one frame, in order; a Region goes as its place, other buffers as their bytes."""
    head = HEADER.pack(kind, len(buffers), len(releases), call, len(body))
    if not buffers and not releases:
        return [head + body] if len(body) < DIRECT else [head, body]
    table = [BUFFER.pack(b.offset, b.length) if isinstance(b, Region) else BUFFER.pack(INLINE, len(b)) for b in buffers]
    given = [RELEASE.pack(offset) for offset in releases]
    return [b"".join((head, *table, *given)), body, *(b for b in buffers if not isinstance(b, Region))]


class Decoder:
    """Turns received bytes into frames.

    `space()` is where the next bytes belong; `received(n)` says that n arrived and gives the frames that are whole.
    `adopt(region)` turns a region of the peer's slab into a buffer.
    """

    def __init__(self, adopt: Callable[[Region], Any]) -> None:
        self._adopt = adopt
        self._scratch = memoryview(bytearray(SCRATCH))
        self._start = self._end = 0
        self._frame: Frame | None = None
        self._targets: list[memoryview] = []
        self._filled = 0

    def space(self) -> memoryview:
        """Writable room for the next bytes, never empty."""
        if self._targets:
            return self._targets[0][self._filled :]
        return self._scratch[self._end :]

    def received(self, count: int) -> list[Frame]:
        """Take `count` bytes that were written at the front of `space()`."""
        if self._targets:
            self._filled += count
        else:
            self._end += count
        frames: list[Frame] = []
        while True:
            if self._frame is None:
                self._take_plain(frames)
                if self._start == self._end:
                    break
            frame = self._advance()
            if frame is None:
                break
            frames.append(frame)
        self._make_room()
        return frames

    def _take_plain(self, frames: list[Frame]) -> None:
        """The common case, in a tight loop: frames that are here whole and have neither buffers nor releases."""
        scratch, start, end, size = self._scratch, self._start, self._end, HEADER.size
        while end - start >= size:
            kind, buffers, releases, call, length = HEADER.unpack_from(scratch, start)
            body = start + size
            if buffers or releases or length >= DIRECT or body + length > end:
                break
            start = body + length
            frames.append(Frame(kind, call, bytes(scratch[body:start]), []))
        self._start = start

    def _advance(self) -> Frame | None:
        if self._frame is None and not self._open():
            return None
        while self._targets:
            self._pour()
            if self._filled < len(self._targets[0]):
                return None
            self._targets.pop(0)
            self._filled = 0
        frame, self._frame = self._frame, None
        return frame

    def _pour(self) -> None:
        """Move bytes that came with the head of a frame into the part that they belong to."""
        target = self._targets[0]
        count = min(len(target) - self._filled, self._end - self._start)
        if count:
            target[self._filled : self._filled + count] = self._scratch[self._start : self._start + count]
            self._filled += count
            self._start += count

    def _open(self) -> bool:
        """Read the head of the next frame, if all of it is here, and set up the parts that are still to come."""
        here = self._end - self._start
        if here < HEADER.size:
            return False
        kind, buffers, releases, call, length = HEADER.unpack_from(self._scratch, self._start)
        head = HEADER.size + buffers * BUFFER.size + releases * RELEASE.size
        short = length < DIRECT
        if here < (whole := head + length if short else head):
            self._require(whole)
            return False
        at = self._start + HEADER.size
        regions = [BUFFER.unpack_from(self._scratch, at + i * BUFFER.size) for i in range(buffers)]
        at += buffers * BUFFER.size
        given = tuple(RELEASE.unpack_from(self._scratch, at + i * RELEASE.size)[0] for i in range(releases))
        at += releases * RELEASE.size
        body: Bytes = bytes(self._scratch[at : at + length]) if short else bytearray(length)
        self._start += whole
        self._frame = Frame(kind, call, body, [self._buffer(*region) for region in regions], given)
        inline = [b for b, (offset, size) in zip(self._frame.buffers, regions, strict=True) if offset < 0 and size]
        self._targets = [memoryview(part) for part in ([] if short else [body]) + inline]
        return True

    def _buffer(self, offset: int, length: int) -> Any:
        return bytearray(length) if offset == INLINE else self._adopt(Region(offset, length))

    def _make_room(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._scratch):
            self._require(len(self._scratch))

    def _require(self, size: int) -> None:
        """Have the rest of the scratch buffer hold `size` bytes from the start of the frame."""
        if self._start + size <= len(self._scratch) and self._end < len(self._scratch):
            return
        rest = bytes(self._scratch[self._start : self._end])
        if size > len(self._scratch):
            self._scratch = memoryview(bytearray(2 * size))
        self._scratch[: len(rest)] = rest
        self._start, self._end = 0, len(rest)
