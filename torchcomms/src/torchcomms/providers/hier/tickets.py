"""Tickets of both sides of a hier group, with the errors of the local side put in the ranks of the whole group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from torchcomms.errors import CommsError, CommsTimeout, MessageMismatch, PeerFailed, name_ranks

if TYPE_CHECKING:
    from torchcomms.backend import Ticket

SLICE = 20e-3  # seconds that a wait inside the host blocks before it looks at the wire
TURN = 1e-3  # seconds that each side gets in turn when messages are pending on both


class Sides(Protocol):
    """What a ticket needs of its backend."""

    timeout: float
    mates: tuple[int, ...]

    def lost(self) -> frozenset[int]:
        """Ranks of the whole group that are dead."""


class Local:
    """A ticket of the local backend; waiting for it also notices deaths on other hosts."""

    __slots__ = ("_group", "_ticket")

    def __init__(self, group: Sides, ticket: Ticket) -> None:
        self._group, self._ticket = group, ticket

    def test(self) -> bool:
        try:
            done = self._ticket.test()
        except CommsError as error:
            raise self._translated(error) from error
        if not done:
            self._check_alive()
        return done

    def wait(self) -> None:
        self.wait_host(time.monotonic() + self._group.timeout)

    def wait_host(self, deadline: float) -> None:
        while True:
            until = min(deadline, time.monotonic() + SLICE)
            try:
                return self._ticket.wait_host(until)
            except CommsTimeout as late:
                self._check_alive()
                if time.monotonic() >= deadline:
                    raise self._translated(late) from late
            except CommsError as error:
                raise self._translated(error) from error

    def _check_alive(self) -> None:
        lost = self._group.lost()
        if lost:
            raise PeerFailed(f"{name_ranks(lost)} died", ranks=lost)

    def _translated(self, error: CommsError) -> CommsError:
        mates = self._group.mates
        if isinstance(error, PeerFailed):
            # A mate that left may have left because of a death elsewhere: that is the cause.
            ranks = self._group.lost() or frozenset(mates[rank] for rank in error.ranks)
            return PeerFailed(f"{name_ranks(ranks)} died or left while this rank still needed it", ranks=ranks)
        if isinstance(error, CommsTimeout):
            missing = frozenset(mates[rank] for rank in error.missing)
            return CommsTimeout(f"still waiting for {name_ranks(missing)} at the deadline", missing=missing)
        if isinstance(error, MessageMismatch):
            sizes = {"expected": error.expected, "actual": error.actual}
            words = f"rank {mates[error.peer]} sent {error.actual} bytes on tag {error.tag} where {error.expected} were"
            return MessageMismatch(f"{words} expected", peer=mates[error.peer], tag=error.tag, **sizes)
        return error


class Joint:
    """Messages of one batch that go both ways, on the wire and inside the host."""

    __slots__ = ("_pending", "_timeout")

    def __init__(self, tickets: Sequence[Ticket], timeout: float) -> None:
        self._pending, self._timeout = list(tickets), timeout

    def test(self) -> bool:
        self._pending = [ticket for ticket in self._pending if not ticket.test()]
        return not self._pending

    def wait(self) -> None:
        self.wait_host(time.monotonic() + self._timeout)

    def wait_host(self, deadline: float) -> None:
        # In turns: a side that nobody waits for makes no progress.
        while not self.test() and len(self._pending) > 1:
            late = time.monotonic() >= deadline
            for ticket in self._pending:
                with suppress(*() if late else (CommsTimeout,)):
                    ticket.wait_host(min(deadline, time.monotonic() + TURN))
        for ticket in self._pending:
            ticket.wait_host(deadline)
