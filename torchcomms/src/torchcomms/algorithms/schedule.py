"""Schedules, and the sequencer that drives them: generators that post messages and yield the tickets to wait for.

Between two yields a schedule does its local reductions. Nothing here knows sockets or tensors, so that a real backend
and a simulated one run the very same generators. Imports no torch.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING

from torchcomms.errors import CommsTimeout

if TYPE_CHECKING:
    from torchcomms.backend import Ticket

Schedule = Generator["Ticket", None, None]


class ScheduleTicket:
    """One running schedule: a `Ticket`."""

    __slots__ = ("_current", "_deadline", "_error", "_operation", "_schedule", "_sequencer", "settled")

    def __init__(self, sequencer: Sequencer, operation: object, schedule: Schedule, deadline: float) -> None:
        self._sequencer, self._operation, self._schedule, self._deadline = sequencer, operation, schedule, deadline
        self._current: Ticket | None = None
        self._error: BaseException | None = None
        self.settled = False

    def test(self) -> bool:
        self._sequencer.advance()
        return self._outcome()

    def wait(self) -> None:
        self.wait_host(self._deadline)

    def wait_host(self, deadline: float) -> None:
        self._sequencer.run(self, deadline)
        self._outcome()

    def step(self) -> bool:
        """Go on as far as possible without blocking; whether it has come to its end."""
        try:
            while self._current is None or self._current.test():
                self._current = next(self._schedule)
        except StopIteration:
            self._settle(None)
        except Exception as error:
            self._fail(error)
        return self.settled

    def block(self, deadline: float) -> None:
        """Wait for what the schedule waits for now; a timeout leaves it where it is."""
        try:
            if self._current is not None:
                self._current.wait_host(deadline)
        except CommsTimeout as late:
            raise CommsTimeout(f"{self._operation}: {late}", missing=late.missing, calls=late.calls) from late
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Throw a wait's error into the schedule, which may note it; if it was the schedule's own, it has ended."""
        try:
            self._schedule.throw(error)
        except Exception as raised:
            self._settle(error if isinstance(raised, StopIteration) else raised)
        else:
            self._settle(error)

    def _settle(self, error: BaseException | None) -> None:
        self._schedule.close()
        self._current, self._error, self.settled = None, error, True

    def _outcome(self) -> bool:
        if self._error is not None:
            raise self._error
        return self.settled


class Sequencer:
    """Runs schedules one after another in the order of their start, which is the same on every rank.

    So that waiting for a later one first cannot deadlock: it brings the earlier ones to their end on the way.
    """

    def __init__(self) -> None:
        self._queue: deque[ScheduleTicket] = deque()
        self._changed = threading.Condition()
        self._driven = False  # a thread is at it

    def start(self, operation: object, schedule: Schedule, deadline: float) -> ScheduleTicket:
        """Queue a schedule; if nothing is before it, its first messages are posted at once.

        `operation` is worded (`str`) only if an error has to name it.
        """
        ticket = ScheduleTicket(self, operation, schedule, deadline)
        self._queue.append(ticket)
        self.advance()
        return ticket

    def advance(self) -> None:
        """Go on as far as possible without blocking, unless another thread is at it."""
        with self._changed:
            if self._driven:
                return
            self._driven = True
        try:
            self._advance()
        finally:
            self._leave()

    def _advance(self) -> None:
        while self._queue and self._queue[0].step():
            self._queue.popleft()
            # Who waits for this one need not wait until the driver has done with the next.
            with self._changed:
                self._changed.notify_all()

    def _leave(self) -> None:
        with self._changed:
            self._driven = False
            self._changed.notify_all()

    def run(self, ticket: ScheduleTicket, deadline: float) -> None:
        """Block until `ticket` is settled; raises `CommsTimeout` at the deadline."""
        while self._enter(ticket, deadline):
            try:
                self._advance()
                if not ticket.settled:
                    self._queue[0].block(deadline)
            finally:
                self._leave()

    def _enter(self, ticket: ScheduleTicket, deadline: float) -> bool:
        """Become the driver; False if another one has settled the ticket meanwhile."""
        with self._changed:
            while self._driven and not ticket.settled:
                patience = min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
                if not self._changed.wait(patience) and not ticket.settled and time.monotonic() >= deadline:
                    raise CommsTimeout("another thread drove this group's collectives until the deadline")
            if ticket.settled:
                return False
            self._driven = True
            return True
