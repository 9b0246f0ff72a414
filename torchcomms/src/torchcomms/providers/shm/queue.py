"""The operations of one rank, one after another: whoever waits for any of them drives the first.

The core goes on by itself for a few milliseconds at most; between, the driver looks at deadlines, deaths and aborts.
So no thread watches, and waiting costs next to nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchcomms import fingerprint
from torchcomms.errors import CollectiveMismatch, CommsClosed, CommsError, CommsTimeout, MessageMismatch, PeerFailed
from torchcomms.errors import name_ranks as name
from torchcomms.fingerprint import Call
from torchcomms.providers.inbox import departure
from torchcomms.providers.shm.call import MOVES, Kind, Request, Status

if TYPE_CHECKING:
    from torchcomms.providers.shm.native import Group
    from torchcomms.providers.tcp.engine import Engine

PARK = 10e-3  # seconds that the core waits before the driver looks around
LONG_PARK = 50e-3  # seconds, when it has waited long: looking around costs a tenth of a millisecond on a busy machine
PATIENCE = 20e-3  # seconds of waiting after which a rank tells where it waits
LONG = 0.1  # seconds of waiting that are long
PAUSE = 50e-6  # seconds before asking again for a core that another thread is just using
TELL = (int(Kind.TELL), 0, MOVES, 0, 0.0, 0, 0, None, None)


class ShmTicket:
    """An operation in the queue."""

    __slots__ = ("_deadline", "_queue", "_request")

    def __init__(self, queue: Queue, request: Request, deadline: float) -> None:
        self._queue, self._request, self._deadline = queue, request, deadline

    def test(self) -> bool:
        return self._queue.test(self._request)

    def wait(self) -> None:
        self._queue.run(self._request, self._deadline)

    def wait_host(self, deadline: float) -> None:
        self._queue.run(self._request, deadline)


class Queue:
    """First in, first out. `pending` is empty exactly if an operation may begin at once and nothing has failed."""

    def __init__(self, group: Group, engine: Engine, rank: int, size: int) -> None:
        self.pending: deque[Request | None] = deque()
        self._group, self._engine, self._rank, self._size = group, engine, rank, size
        self._changed = threading.Condition()
        self._driven = False  # a thread is at it
        self._failure: CommsError | None = None
        self._looked = 0.0

    def start(self, request: Request, deadline: float) -> ShmTicket:
        """Queue an operation; if nothing is before it, it begins at once."""
        request.site = fingerprint.call_site()
        with self._changed:
            self.check()
            self.pending.append(request)
        self._advance_all()
        return ShmTicket(self, request, deadline)

    def adopt(self, request: Request, status: int, deadline: float) -> None:
        """Bring to its end what the core has begun already and left with that status."""
        request.begun, request.sequence = True, self._group.calls()
        with self._changed:
            self.check()
            self.pending.appendleft(request)
        self._take(request, status)
        self.run(request, deadline)

    def check(self) -> None:
        """Raise what ended this rank's part in the group, if anything did."""
        if self._failure is not None or self._engine.failure is not None:
            raise self._failure or self._engine.failure  # type: ignore[misc]  # one of them is there

    def fail(self, failure: CommsError) -> None:
        """End every operation, now and later."""
        with self._changed:
            self._failure = self._failure or failure
            for request in self.pending:
                if request is not None:
                    request.error, request.settled = failure, True
            self.pending.clear()
            self.pending.append(None)
            self._changed.notify_all()

    def abandon(self, failure: CommsError) -> None:
        """As `fail`, in a forked child, where the thread that holds the lock may not exist."""
        self._changed = threading.Condition()
        self.fail(failure)

    def test(self, request: Request) -> bool:
        """Whether it is complete, after going on as far as possible without blocking."""
        if not request.settled:
            self._advance_all()
        return self._outcome(request)

    def run(self, request: Request, deadline: float) -> None:
        """Block until `request` is settled; raises `CommsTimeout` at the deadline."""
        since = time.monotonic()
        while not request.settled:
            if self._become_driver(request, deadline):
                try:
                    self._drive(request, since, deadline)
                finally:
                    self._resign()
        self._outcome(request)

    def _become_driver(self, request: Request, deadline: float) -> bool:
        with self._changed:
            if self._driven and not request.settled:
                patience = min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
                if not self._changed.wait(patience) and not request.settled:
                    raise CommsTimeout(f"{request.call()}: another thread drove this group until the deadline")
            if self._driven or request.settled:
                return False
            self._driven = True
            return True

    def _resign(self) -> None:
        with self._changed:
            self._driven = False
            self._changed.notify_all()

    def _drive(self, request: Request, since: float, deadline: float) -> None:
        while not request.settled:
            head = self.pending[0]
            if head is None:
                return
            now = time.monotonic()
            remaining = deadline - now
            self._advance(head, min(PARK if now - since < LONG else LONG_PARK, max(0.0, remaining)))
            if not head.settled:
                self._look_around(head)
            if not head.settled and remaining <= 0:
                raise self._late(head)
            if not head.told and time.monotonic() - since > PATIENCE:
                self._tell(head)

    def _advance_all(self) -> None:
        with self._changed:
            if self._driven:
                return
            self._driven = True
        try:
            while self.pending and (head := self.pending[0]) is not None and self._advance(head, 0.0):
                continue
            if self.pending and head is not None and time.monotonic() - self._looked > PARK:
                self._look_around(head)
        finally:
            self._resign()

    def _advance(self, head: Request, park: float) -> bool:
        """Let the core go on with the first operation, for `park` seconds at most; whether that is settled."""
        if not head.begun:
            status: int = self._group.begin(*head.arguments)
            if status != Status.DONE:
                self._take(head, status)
                if park:
                    time.sleep(PAUSE)
                return head.settled
            head.begun = True
            head.sequence = head.sequence or self._group.calls()
        self._take(head, self._group.step(int(park * 1e9)))
        return head.settled

    def _take(self, head: Request, status: int) -> None:
        if status in (Status.PENDING, Status.BUSY):
            return
        if status == Status.MISMATCH:
            self._tell(head)
            # Where it stood in line, the ranks have a round in which each reads what the others called.
            head.begun, head.telling, head.arguments = False, True, TELL
            return
        error: Exception | None = None
        try:
            self._finish(head, status)
        except Exception as raised:
            error = raised
        with self._changed:
            if not head.settled:
                head.error, head.settled = error, True
                self.pending.remove(head)
            self._changed.notify_all()

    def _finish(self, head: Request, status: int) -> None:
        if status == Status.CLOSED:
            self.check()
            raise CommsClosed("this shm backend is closed; open a new one")
        if status == Status.LENGTHS:
            raise self._odd(head)
        if head.telling:
            raise self._mismatch(head)
        if head.finish is not None:
            head.finish()

    def _outcome(self, request: Request) -> bool:
        if request.error is not None:
            raise request.error
        return request.settled

    def _tell(self, head: Request) -> None:
        head.told = True
        self._group.tell(head.call().pack())

    def look(self) -> None:
        """Raise if the group has failed on this rank, or a rank has died."""
        self.check()
        lost = self._engine.lost()
        if lost:
            raise PeerFailed(f"{name(lost)} died: gone without a goodbye", ranks=lost)

    def _look_around(self, head: Request) -> None:
        self._looked = time.monotonic()
        try:
            self.look()
            for rank in sorted(self._engine.left() & frozenset(self._group.late() if head.begun else ())):
                raise departure(rank)
        except CommsError as failure:
            # Who has gone may have done its part before.
            if not (isinstance(failure, PeerFailed) and self._advance(head, 0.0)):
                self.fail(failure)

    def _calls(self, hear: Callable[[int], bytes]) -> dict[int, Call]:
        stories = {rank: hear(rank) for rank in range(self._size)}
        return {rank: Call.unpack(story) for rank, story in stories.items() if len(story) >= fingerprint.SIZE}

    def _late(self, head: Request) -> CommsTimeout:
        missing = frozenset(self._group.late() if head.begun else ())
        calls = {rank: str(call) for rank, call in {**self._calls(self._group.hear), self._rank: head.call()}.items()}
        who = f"{name(missing)} did not come to" if missing else "nothing could begin:"
        words = f"{who} {head.call()} in time{fingerprint.told(calls, missing)}"
        return CommsTimeout(words, missing=missing, calls=calls)

    def _mismatch(self, head: Request) -> CommsError:
        calls = {**self._calls(self._group.heard), self._rank: head.call()}
        try:
            fingerprint.compare({rank: call.pack() for rank, call in calls.items()})
        except CollectiveMismatch as error:
            return error
        told = {rank: str(call) for rank, call in calls.items()}
        return CollectiveMismatch(f"ranks called different collectives: {told}", calls=told)

    def _odd(self, head: Request) -> MessageMismatch:
        peer, actual = self._group.odd()
        return MessageMismatch(
            f"rank {peer} gave {actual} bytes to {head.call()} where another length was expected; "
            "pass tensors of one length on both sides",
            peer=peer,
            actual=actual,
            expected=head.expects(peer),
        )
