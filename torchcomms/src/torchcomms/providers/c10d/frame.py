"""The frames that announce gloo's messages: gloo itself tells a receiver neither tag nor length.

Every frame has one size, so that a receive for it can be posted before anything is known. A short payload rides along;
a longer one follows as a message of its own.
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

DATA, GOODBYE, SEEN = range(3)
ROOM = 8 << 10  # bytes of payload that ride in a frame
_HEAD = struct.Struct("<qqq")  # kind, tag, bytes of payload
LONGEST = _HEAD.size + ROOM


def pack(kind: int, tag: int = 0, payload: memoryview | None = None) -> Tensor:
    """A frame in memory of its own; a payload longer than `ROOM` is only announced."""
    length = 0 if payload is None else payload.nbytes
    riding = payload if payload is not None and length <= ROOM else b""
    return torch.frombuffer(bytearray(_HEAD.pack(kind, tag, length)) + riding, dtype=torch.uint8)


def parse(frame: memoryview) -> tuple[int, int, int]:
    """Kind, tag and length of the payload."""
    kind, tag, length = _HEAD.unpack_from(frame)
    return kind, tag, length


def payload(frame: memoryview, length: int) -> memoryview:
    """The payload that rode along."""
    return frame[_HEAD.size : _HEAD.size + length]
