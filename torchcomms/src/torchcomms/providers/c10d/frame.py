"""The frames that announce gloo's messages: gloo itself tells a receiver neither tag nor length.

Every frame has one size, so that a receive for it can be posted before anything is known. A short payload rides along;
a longer one follows as a message of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import torch
from torch import Tensor

# READ says how many frames have been read; GOODBYE names the ranks whose death makes its sender leave; SEEN answers it.
DATA, READ, GOODBYE, SEEN = range(4)
ROOM = 64 << 10  # bytes of payload that ride in a frame
_HEAD = struct.Struct("<qqq")  # kind, number (the tag of a message), bytes of payload
LONGEST = _HEAD.size + ROOM


def pack(kind: int, number: int = 0, payload: memoryview | bytes = b"") -> Tensor:
    """A frame in memory of its own; a payload longer than `ROOM` is only announced."""
    head = bytearray(_HEAD.pack(kind, number, len(payload)))
    return torch.frombuffer(head + payload if len(payload) <= ROOM else head, dtype=torch.uint8)


def parse(frame: memoryview) -> tuple[int, int, int]:
    """Kind, number and length of the payload."""
    kind, number, length = _HEAD.unpack_from(frame)
    return kind, number, length


def payload(frame: memoryview, length: int) -> memoryview:
    """The payload that rode along."""
    return frame[_HEAD.size : _HEAD.size + length]


def goodbye(lost: Iterable[int]) -> Tensor:
    """The last frame of a rank that leaves in order and knows of these deaths."""
    named = sorted(lost)[: ROOM // 4]
    return pack(GOODBYE, 0, struct.pack(f"<{len(named)}I", *named))


def blamed(frame: memoryview, length: int) -> frozenset[int]:
    """The ranks that a goodbye calls dead."""
    return frozenset(struct.unpack(f"<{length // 4}I", payload(frame, length)))
