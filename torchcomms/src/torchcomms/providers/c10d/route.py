"""What two ranks tell each other about their messages on a device, beside the library: heads on the control channel."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import torch

from torchcomms.backend import P2P, Ticket
from torchcomms.providers.c10d.landing import Box
from torchcomms.providers.tcp import TcpBackend

TAG = -(1 << 62)
MESSAGE, ASK, ANSWER = range(3)
_HEAD = struct.Struct("<qqq")


@dataclass(frozen=True, slots=True)
class Head:
    """A message of `length` bytes on tag `number`; or a question how many collectives the peer has begun; or `number`
    as the answer to it.
    """

    kind: int
    number: int = 0
    length: int = 0


class Route:
    """The heads to and from one peer, and the messages from it."""

    def __init__(self, control: TcpBackend, peer: int) -> None:
        self._control, self.peer = control, peer
        self.box = Box()
        self.begun: int | None = None  # the peer's latest answer
        self._buffer = torch.empty(_HEAD.size, dtype=torch.uint8)
        self._ticket: Ticket | None = None

    def tell(self, head: Head) -> None:
        """Send a head."""
        packed = bytearray(_HEAD.pack(head.kind, head.number, head.length))
        self._control.post([P2P("send", torch.frombuffer(packed, dtype=torch.uint8), self.peer, TAG)])

    def next(self) -> Head | None:
        """The next head, if it is here. Raises `PeerFailed` if none will come."""
        if self._ticket is None:
            self._ticket = self._control.post([P2P("recv", self._buffer, self.peer, TAG)])
        if not self._ticket.test():
            return None
        self._ticket = None
        return Head(*_HEAD.unpack(self._buffer.numpy().tobytes()))
