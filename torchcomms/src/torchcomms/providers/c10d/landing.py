"""Receives on a device and what comes for them: first in, first out per tag."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from torchcomms.backend import P2P
from torchcomms.errors import CommsError, MessageMismatch
from torchcomms.providers.c10d.streams import Flight, Streams


class Landing:
    """A receive: a `Flight` that has not begun before its message is known to come.

    `until` blocks until the function that it is given is true.
    """

    __slots__ = ("_error", "_flight", "_message", "_posted", "_streams", "_until")

    def __init__(self, message: P2P, streams: Streams, until: Callable[[Callable[[], bool]], None]) -> None:
        self._message, self._streams, self._until = message, streams, until
        self._posted = streams.mark()
        self._flight: Flight | None = None
        self._error: CommsError | None = None

    @property
    def tag(self) -> int:
        return self._message.tag

    def room(self, length: int) -> Tensor | None:
        """The bytes to receive into, in the current stream, after what used them before; None if the length differs."""
        expected = self._message.tensor.nbytes
        if length != expected:
            self.fail(_mismatch(self._message, length))
            return None
        self._posted.wait()
        return self._message.tensor.detach().view(-1).view(torch.uint8)

    def begin(self, flight: Flight) -> None:
        """The device receives."""
        self._flight = flight

    def take(self, kept: Tensor, arrived: Flight) -> None:
        """Copy a message that came before this receive."""
        room = self.room(kept.nbytes)
        if room is not None:
            arrived.wait()
            room.copy_(kept)
            self._streams.hold(kept)
            self.begin(self._streams.mark())

    def fail(self, error: CommsError) -> None:
        """Nothing will come."""
        self._error = error

    def started(self) -> bool:
        """Whether the device receives; raises why it never will."""
        if self._error is not None:
            raise self._error
        return self._flight is not None

    def is_completed(self) -> bool:
        return self.started() and self._flight is not None and self._flight.is_completed()

    def wait(self) -> object:
        self._until(self.started)
        assert self._flight is not None
        return self._flight.wait()


class Box:
    """The receives from one peer that nothing has come for, and what came and nothing was posted for."""

    def __init__(self) -> None:
        self._expected: dict[int, deque[Landing]] = {}
        self._early: dict[int, deque[tuple[Tensor, Flight]]] = {}

    @property
    def waiting(self) -> bool:
        """Whether receives wait for their messages."""
        return any(self._expected.values())

    def expect(self, landing: Landing) -> None:
        """Post a receive."""
        early = self._early.get(landing.tag)
        if early:
            landing.take(*early.popleft())
        else:
            self._expected.setdefault(landing.tag, deque()).append(landing)

    def arrive(
        self, tag: int, length: int, blank: Callable[[int], Tensor], receive: Callable[[Tensor], Flight]
    ) -> None:
        """A message comes: `receive` it into the tensor of its receive, or into new memory from `blank`."""
        expected = self._expected.get(tag)
        landing = expected.popleft() if expected else None
        room = None if landing is None else landing.room(length)
        if landing is not None and room is not None:
            landing.begin(receive(room))
            return
        kept = blank(length)
        arrived = receive(kept)
        if landing is None:
            self._early.setdefault(tag, deque()).append((kept, arrived))

    def fail(self, error: CommsError) -> None:
        """End every receive that waits."""
        for expected in self._expected.values():
            for landing in expected:
                landing.fail(error)
        self._expected.clear()


def _mismatch(message: P2P, actual: int) -> MessageMismatch:
    expected = message.tensor.nbytes
    return MessageMismatch(
        f"rank {message.peer} sent {actual} bytes on tag {message.tag} where {expected} were expected; "
        "send and receive tensors of one length",
        peer=message.peer,
        tag=message.tag,
        expected=expected,
        actual=actual,
    )
