"""What an operation of a communicator returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchcomms import layout

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import Ticket


class Work:
    """An operation in flight. It goes on while some thread waits for or asks about a work of its communicator.

    The tensors belong to the communicator until `wait` has returned or `is_completed` was true.
    """

    __slots__ = ("_deadline", "_ticket", "_wait")

    def __init__(self, ticket: Ticket, deadline: float, wait: Callable[[Ticket, float], None] | None = None) -> None:
        self._ticket, self._deadline = ticket, deadline
        self._wait = wait or type(ticket).wait_host

    def wait(self, timeout: float | None = None) -> None:
        """Block until complete, for `timeout` seconds or the communicator's timeout. Raises a `CommsError`."""
        self._wait(self._ticket, self._deadline if timeout is None else time.monotonic() + timeout)

    def is_completed(self) -> bool:
        """Whether it is complete, without blocking. Raises the operation's error if it failed."""
        return self._ticket.test()


class Received:
    """A receive whose message is written to its target when it is through: a `Ticket`."""

    __slots__ = ("_buffer", "_target", "_ticket")

    def __init__(self, ticket: Ticket, target: Tensor, buffer: Tensor) -> None:
        self._ticket, self._buffer = ticket, buffer
        self._target: Tensor | None = target

    def test(self) -> bool:
        return self._ticket.test() and self._unpack()

    def wait(self) -> None:
        self._ticket.wait()
        self._unpack()

    def wait_host(self, deadline: float) -> None:
        self._ticket.wait_host(deadline)
        self._unpack()

    def _unpack(self) -> bool:
        # Once only: what the caller writes to the tensor afterwards is not to be overwritten by a second wait.
        if self._target is not None:
            layout.unpack([self._target], [self._buffer])
            self._target = None
        return True
