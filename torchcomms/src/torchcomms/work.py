"""What an operation of a communicator returns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING

from torchcomms.errors import CommsTimeout

if TYPE_CHECKING:
    from torchcomms.backend import Ticket

End = Callable[[Exception | None], None]
Late = Callable[[CommsTimeout], None]


class WorkStatus(Enum):
    """Where an operation stands."""

    NOT_STARTED = auto()
    INPROGRESS = auto()
    COMPLETED = auto()
    TIMEDOUT = auto()
    ERROR = auto()


class Work:
    """An operation in flight; several threads may wait for it.

    An `async_op` goes on by itself until its deadline, then while some thread waits for it. The tensors belong to the
    communicator until `wait` has returned or `is_completed` was true.
    """

    __slots__ = ("_deadline", "_end", "_error", "_late", "_lock", "_status", "_ticket", "_watchers")

    def __init__(self, ticket: Ticket, deadline: float, end: End, late: Late) -> None:
        """`end` is called once, with the error or None, before any wait returns; what it raises is the error.

        `late` is called once, if the operation is not through at its own deadline.
        """
        self._ticket, self._deadline = ticket, deadline
        self._end: End | None = end
        self._late: Late | None = late
        self._lock = threading.RLock()  # an end may ask about its own work
        self._error: Exception | None = None
        self._status = WorkStatus.INPROGRESS
        self._watchers: list[End] = []

    @classmethod
    def done(cls) -> Work:
        """The work of an operation that is through."""
        work = cls.__new__(cls)
        work._status, work._error = WorkStatus.COMPLETED, None
        return work

    @property
    def status(self) -> WorkStatus:
        """Where it stands, as far as somebody has looked."""
        return self._status

    def wait(self, timeout: float | timedelta | None = None) -> None:
        """Block until complete, for `timeout` (seconds) or until the operation's deadline. Raises a `CommsError`.

        After a `CommsTimeout` it may be waited again.
        """
        if self._status in _OPEN:
            seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
            deadline = self._deadline if seconds is None else time.monotonic() + seconds
            try:
                self._drive(deadline)
            except CommsTimeout as error:
                if deadline >= self._deadline:
                    self._expire(error)
                raise
        self._raise()

    def wait_blocking(self, timeout: float | timedelta | None = None) -> None:
        """The same as `wait`, which blocks the host on every device."""
        self.wait(timeout)

    def is_completed(self) -> bool:
        """Whether it is complete, without blocking. Raises the operation's error if it failed."""
        ended = self._test()
        self._raise()
        return ended

    def when_over(self, callback: End) -> None:
        """Call `callback` once with the error or None: at the operation's end or deadline, whichever comes first.

        On the thread that sees it first, at once if it is over already. It must not raise and not block.
        """
        if self._status is WorkStatus.INPROGRESS:
            with self._lock:
                if self._status is WorkStatus.INPROGRESS:
                    self._watchers.append(callback)
                    return
        late = self._status is WorkStatus.TIMEDOUT
        callback(CommsTimeout("the operation was not through at its deadline") if late else self._error)

    def poll(self) -> bool:
        """Whether nobody need drive it any more: it has ended, or its deadline has passed. Never raises."""
        if self._test():
            return True
        if time.monotonic() < self._deadline:
            return False
        self.pause(0.0)
        return True

    def _test(self) -> bool:
        if self._status in _OPEN:
            try:
                if not self._ticket.test():
                    return False
            except Exception as error:
                self._settle(error)
            else:
                self._settle(None)
        return True

    def pause(self, seconds: float) -> None:
        """Drive it for a while. Never raises."""
        try:
            self._drive(min(self._deadline, time.monotonic() + seconds))
        except CommsTimeout as error:
            if time.monotonic() >= self._deadline:
                self._expire(error)

    def _drive(self, deadline: float) -> None:
        try:
            self._ticket.wait_host(deadline)
        except CommsTimeout:
            raise
        except Exception as error:
            self._settle(error)
        else:
            self._settle(None)

    def _settle(self, error: Exception | None) -> None:
        with self._lock:
            if self._end is None:
                return
            end, self._end, self._late = self._end, None, None
            try:
                end(error)
            except Exception as raised:
                error = error or raised
            self._error = error
            self._status = WorkStatus.COMPLETED if error is None else WorkStatus.ERROR
            watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher(error)

    def _expire(self, error: CommsTimeout) -> None:
        with self._lock:
            late, self._late = self._late, None
            if late is None or self._end is None:
                return
            self._status = WorkStatus.TIMEDOUT
            watchers, self._watchers = self._watchers, []
        late(error)
        for watcher in watchers:
            watcher(error)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


class StreamWork(Work):
    """An operation in the order of a device's streams: `wait` lets the current stream wait, and the host go on.

    The results are written back by the thread that waits or asks, in its current stream.
    """

    __slots__ = ("_finish",)

    def __init__(self, ticket: Ticket, deadline: float, end: End, late: Late, finish: Callable[[], None]) -> None:
        super().__init__(ticket, deadline, end, late)
        self._finish: Callable[[], None] | None = finish

    def wait(self, timeout: float | timedelta | None = None) -> None:
        """Order the current stream after it; with a `timeout`, block the host as `wait_blocking` does."""
        if timeout is not None:
            self.wait_blocking(timeout)
            return
        self._raise()
        try:
            self._ticket.wait()
        except CommsTimeout as error:
            self._expire(error)
            raise
        except Exception as error:
            self._settle(error)
        self._raise()
        self._deliver()

    def wait_blocking(self, timeout: float | timedelta | None = None) -> None:
        """Block the host until complete, for `timeout` (seconds) or until the operation's deadline."""
        super().wait(timeout)
        self._deliver()

    def is_completed(self) -> bool:
        """Whether it is complete, without blocking. Raises the operation's error if it failed."""
        ended = super().is_completed()
        if ended:
            self._deliver()
        return ended

    def _deliver(self) -> None:
        with self._lock:
            finish, self._finish = self._finish, None
        if finish is not None:
            finish()


_OPEN = frozenset({WorkStatus.INPROGRESS, WorkStatus.TIMEDOUT})
DONE = Work.done()
TorchWork = Work  # upstream's name
