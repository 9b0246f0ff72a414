"""Shared memory for large buffers: a sender's slab, and the receiver's leases on regions of it.

A slab is a sparse memfd, mapped once by each side. The sender copies a buffer into a region and names the region in a
frame; the receiver's array lies over that region, which nobody else writes, and the lease ends when the last view of
the array is gone. So a received tensor costs one copy, and no view can outlive its lease.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from monarch.engine.arena import Arena
from monarch.engine.framing import Bytes, Region

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SIZE = 1 << 30
"""Address space of a slab in bytes; memory is used only where it was written."""

SHARED = 1 << 16
"""Buffers of at least this many bytes go through a slab, where it has room."""


def make_slab() -> int:
    """Descriptor of a new slab, which the caller owns."""
    fd = os.memfd_create("monarch-slab", os.MFD_CLOEXEC)
    os.ftruncate(fd, SIZE)
    return fd


class OutSlab:
    """The sender's side; used from several threads."""

    def __init__(self, fd: int) -> None:
        self._map = memoryview(mmap.mmap(fd, SIZE))
        self._arena = Arena(SIZE)
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes on lease."""
        return self._arena.used

    def place(self, buffer: Bytes) -> Region | None:
        """Copy a buffer in; None where it is small or there is no room."""
        length = len(buffer)
        if length < SHARED:
            return None
        with self._lock:
            offset = self._arena.allocate(length)
        if offset is None:
            return None
        self._map[offset : offset + length] = buffer
        return Region(offset, length)

    def free(self, offsets: Iterable[int]) -> None:
        """Take regions back."""
        with self._lock:
            for offset in offsets:
                self._arena.free(offset)


class Leases:
    """The regions of a slab that one receiving process holds."""

    def __init__(self, slab: OutSlab) -> None:
        self._slab = slab
        self._held: set[int] = set()
        self._lock = threading.Lock()

    def place(self, buffer: Bytes) -> Region | None:
        """Copy a buffer in for this receiver; None where it is small or there is no room."""
        region = self._slab.place(buffer)
        if region is not None:
            with self._lock:
                self._held.add(region.offset)
        return region

    def free(self, offsets: Iterable[int]) -> None:
        """The receiver released these."""
        with self._lock:
            ended = self._held.intersection(offsets)
            self._held -= ended
        self._slab.free(ended)

    def free_all(self) -> None:
        """The receiver is no more."""
        with self._lock:
            ended, self._held = self._held, set()
        self._slab.free(ended)


class InSlab:
    """The receiver's side: arrays over regions, and the offsets whose leases have ended."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map: mmap.mmap | None = None
        self._leases: dict[int, weakref.ref[Any]] = {}
        self._released: deque[int] = deque()

    def adopt(self, region: Region) -> npt.NDArray[np.uint8]:
        """An array of the region's bytes; the lease ends when it and everything that views it are gone."""
        import numpy as np

        if self._map is None:
            self._map = mmap.mmap(self._fd, SIZE)
        array = np.frombuffer(self._map, np.uint8, region.length, region.offset)
        offset = region.offset

        def release(_: object) -> None:
            # May run in any thread, at any time: nothing here takes a lock.
            self._leases.pop(offset, None)
            self._released.append(offset)

        self._leases[offset] = weakref.ref(array, release)
        return array

    def released(self) -> list[int]:
        """Offsets whose leases have ended since the last call, to be told to the sender."""
        offsets: list[int] = []
        while self._released:
            offsets.append(self._released.popleft())
        return offsets

    def close(self) -> None:
        """Close the descriptor; arrays stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
