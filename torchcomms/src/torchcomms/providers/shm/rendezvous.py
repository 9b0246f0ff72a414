"""How shm ranks get the segment: sockets first, then rank 0 makes memory without a name and passes it to the others.

It has no name in any file system, so its size is not that of /dev/shm, and it is gone when the last process is.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from torchcomms.errors import CommsTimeout

HELLO = struct.Struct("<?32s")
WORD = struct.Struct("<?6Q")
LINE, PAGE = 64, 4096
HEAP = 1 << 40  # bytes of address space for all heaps of a group; memory is only what is touched
SLOTS = 64 << 20  # bytes of all slots of a group, about


@dataclass(frozen=True, slots=True)
class Layout:
    """`struct layout` of core/group.h, and the size of the whole; bytes."""

    slot: int
    chunk: int
    small: int
    piece: int
    heap: int
    total: int


def layout(size: int, piece: int) -> Layout:
    """The segment of a group of that size."""
    slot = min(2 << 20, max(512 << 10, SLOTS // (2 * size)))
    piece = max(piece // PAGE, 16) * PAGE
    heap = min(64 << 30, HEAP // size) // PAGE * PAGE
    meeting = size * (128 + 256) + 2 * size * (slot + 8 * size + LINE)
    total = meeting + piece + size * heap + 8 * PAGE
    return Layout(slot, min(slot, 512 << 10), 16 << 10, piece, heap, total)


def agree(
    connections: Mapping[int, socket.socket], rank: int, digest: str | None, plan: Layout, deadline: float
) -> tuple[Layout, int] | None:
    """The segment's layout and descriptor, which is the caller's; or None if some rank has no core, or another one."""
    for connection in connections.values():
        connection.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        return _lead(connections, digest, plan) if rank == 0 else _follow(connections[0], digest)
    except TimeoutError as error:
        raise CommsTimeout("not every rank told in time whether it has the core of shm") from error


def _lead(connections: Mapping[int, socket.socket], digest: str | None, plan: Layout) -> tuple[Layout, int] | None:
    answers = [HELLO.unpack(_exactly(connection, HELLO.size)) for connection in connections.values()]
    mine = (digest or "").encode().ljust(32, b"\0")
    together = digest is not None and all(able and theirs == mine for able, theirs in answers)
    facts = (plan.slot, plan.chunk, plan.small, plan.piece, plan.heap, plan.total)
    word = WORD.pack(together, *facts)
    if not together:
        for connection in connections.values():
            connection.sendall(word)
        return None
    segment = os.memfd_create("torchcomms", os.MFD_CLOEXEC)
    try:
        os.ftruncate(segment, plan.total)
        for connection in connections.values():
            socket.send_fds(connection, [word], [segment])
    except BaseException:
        os.close(segment)
        raise
    return plan, segment


def _follow(leader: socket.socket, digest: str | None) -> tuple[Layout, int] | None:
    leader.sendall(HELLO.pack(digest is not None, (digest or "").encode()))
    word, descriptors, _, _ = socket.recv_fds(leader, WORD.size, 1)
    word += _exactly(leader, WORD.size - len(word))
    together, *facts = WORD.unpack(word)
    if not together:
        return None
    os.set_inheritable(descriptors[0], False)
    return Layout(*facts), descriptors[0]


def _exactly(connection: socket.socket, count: int) -> bytes:
    word = b""
    while len(word) < count:
        more = connection.recv(count - len(word))
        if not more:
            raise CommsTimeout("a rank left while the others were opening the shm group")
        word += more
    return word
