"""Progress over all links: whoever waits polls for everybody.

One thread at a time sits in the selector, with the lock released; others that wait sleep on the condition. A waiter
polls without sleeping for a moment first, since waking up costs more than a short message takes.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from torchcomms.backend import P2P
from torchcomms.errors import CommsClosed, CommsError, CommsTimeout, name_ranks
from torchcomms.providers.inbox import Allowance, Batch, Inbox, departure, outcome
from torchcomms.providers.tcp.lifeline import State, machine, state
from torchcomms.providers.tcp.link import Link

SPIN = 20e-6  # seconds of polling before a waiter sleeps
LONGEST = 3600.0  # seconds that one sleep may last, whatever the deadline


class Engine:
    """The sockets of one group on one rank; `name` is the backend's, for errors."""

    def __init__(
        self,
        rank: int,
        size: int,
        connections: Mapping[int, socket.socket],
        name: str = "tcp",
        *,
        lifelines: Mapping[int, socket.socket] | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        self._rank, self._size, self._owner, self._name = rank, size, os.getpid(), name
        # Reentrant, since a signal handler may abort the group in the middle of a post.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sleepers = 0  # threads that wait for another one's poll
        allowance = allowance or Allowance()
        self._links = {peer: Link(peer, connection, allowance) for peer, connection in connections.items()}
        self._lifelines = dict(lifelines or {})
        self._machines = {peer: machine(self._links[peer].socket) for peer in self._lifelines}
        self._own = Inbox(rank, allowance)
        self._lost: set[int] = set()
        self._left: set[int] = set()
        self._gone: set[int] = set()  # both
        self._failure: CommsError | None = None
        self._closed = self._polling = False
        self._holding = 0  # blocks of `coalesce` that are open
        self._held: dict[int, None] = {}  # peers with sends held back, in order
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        for end in (self._wake_in, self._wake_out):
            end.setblocking(False)
        # What is registered with a socket is called with its events.
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._woken)
        for link in self._links.values():
            self._selector.register(link.socket, selectors.EVENT_READ, partial(self._moved, link))
        for peer, lifeline in self._lifelines.items():
            self._selector.register(lifeline, selectors.EVENT_READ, partial(self._felt, peer))
        _ENGINES.add(self)

    def post(self, requests: Sequence[P2P]) -> Batch:
        """Start a batch: receives first, so that what comes in finds its place."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            batch = Batch(requests, self._size)
            for message in batch.messages:
                if not message.sending:
                    self._inbox(message.peer).expect(message)
            self._send(batch)
            if self._left:
                for peer in batch.missing() & self._left:
                    batch.fail(departure(peer))
            if self._polling:
                self._wake()
        return batch

    @contextmanager
    def coalesce(self) -> Iterator[None]:
        """Hold sends back, and let each peer's leave in one call to the kernel at the end.

        Two calls would wake the peer twice, and on a busy machine the first wake-up takes the processor from us.
        """
        with self._lock:
            self._holding += 1
        try:
            yield
        finally:
            with self._lock:
                self._holding -= 1
                if not self._holding:
                    self._release()

    def _release(self) -> None:
        for peer in self._held:
            if self._failure is None and peer not in self._gone:
                self._push(self._links[peer])
        self._held.clear()

    def _inbox(self, peer: int) -> Inbox:
        return self._own if peer == self._rank else self._links[peer].inbox

    def _send(self, batch: Batch) -> None:
        for message in batch.messages:
            if message.sending and message.peer == self._rank:
                self._own.deliver(message)
            elif message.sending and message.peer not in self._gone:
                self._links[message.peer].send(message)
                self._held[message.peer] = None
        if not self._holding:
            self._release()

    def _push(self, link: Link) -> None:
        link.push()
        if link.broken:
            self._drop(link)
        elif link.sending != link.watched:
            link.watched = link.sending
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.sending else 0)
            self._selector.modify(link.socket, events, partial(self._moved, link))

    def _drop(self, link: Link) -> None:
        """The connection ended: after a goodbye the peer has left, without one it is dead."""
        if not link.reader.said_goodbye:
            self._bury(link.peer)
            return
        self._left.add(link.peer)
        self._forget(link.peer)
        link.fail(departure(link.peer))
        # It may have left because of a death that this rank will see later.
        for peer in link.reader.blamed & self._links.keys() - self._gone:
            self._bury(peer)

    def _bury(self, peer: int) -> None:
        self._lost.add(peer)
        self._forget(peer)

    def _forget(self, peer: int) -> None:
        self._gone.add(peer)
        for connection in (self._links[peer].socket, self._lifelines.pop(peer, None)):
            if connection is not None and connection in self._selector.get_map():
                self._selector.unregister(connection)
                connection.close()

    def test(self, batch: Batch) -> bool:
        """Whether the batch is complete, after one look at the sockets."""
        with self._lock:
            if not self._outcome(batch) and not self._polling:
                self._poll(0.0)
            return self._outcome(batch)

    def wait(self, batch: Batch, deadline: float) -> None:
        """Block until the batch is complete."""
        with self._lock:
            spin_until = time.monotonic() + SPIN
            while not self._outcome(batch):
                now = time.monotonic()
                if now >= deadline:
                    missing = batch.missing()
                    raise CommsTimeout(f"still waiting for {name_ranks(missing)} at the deadline", missing=missing)
                if self._polling:
                    self._sleep(min(deadline - now, LONGEST))
                elif now < spin_until:
                    self._glance(batch)
                else:
                    self._poll(min(deadline - now, LONGEST))

    def _sleep(self, patience: float) -> None:
        self._sleepers += 1
        self._changed.wait(patience)
        self._sleepers -= 1

    def _glance(self, batch: Batch) -> None:
        """Look at the peers of one batch: cheaper than to ask the selector about all."""
        for peer in batch.missing() - self._gone - {self._rank}:
            link = self._links[peer]
            self._moved(link, selectors.EVENT_READ | (selectors.EVENT_WRITE if link.sending else 0))

    def _outcome(self, batch: Batch) -> bool:
        return outcome(batch, self._failure, self._lost)

    def _poll(self, patience: float) -> None:
        self._polling = True
        self._changed.release()
        try:
            events = self._selector.select(patience)
        finally:
            self._changed.acquire()
            self._polling = False
            if self._sleepers:
                self._changed.notify_all()
        for key, mask in events:
            if key.fd in self._selector.get_map():  # else an earlier event ended it
                key.data(mask)

    def _woken(self, mask: int) -> None:
        self._wake_out.recv(1 << 10)

    def _moved(self, link: Link, mask: int) -> None:
        """A connection has something to read, or room to write."""
        if mask & selectors.EVENT_READ:
            link.pull()
        if link.overflow is not None:
            self._failure = self._failure or link.overflow
            self._selector.unregister(link.socket)
        elif link.broken:
            self._drop(link)
        elif mask & selectors.EVENT_WRITE:
            self._push(link)

    def _felt(self, peer: int, mask: int) -> None:
        """A lifeline ended. A peer that closed it says on its data connection how it went."""
        lifeline = self._lifelines[peer]
        said = state(lifeline)
        if said is State.GONE:
            # The other ranks there are gone with it, though their own lifelines may need another second to tell.
            for other in [one for one in self._lifelines if self._machines[one] == self._machines[peer]]:
                self._bury(other)
        elif said is State.CLOSED:
            self._selector.unregister(self._lifelines.pop(peer))
            lifeline.close()

    def lost(self) -> frozenset[int]:
        """Ranks known to be dead, after one look at the sockets."""
        with self._lock:
            if self._failure is None and not self._polling:
                self._poll(0.0)
            return frozenset(self._lost)

    def left(self) -> frozenset[int]:
        """Ranks that closed in order, as far as was seen."""
        return frozenset(self._left)

    @property
    def failure(self) -> CommsError | None:
        """What ended every wait of this rank, if anything did."""
        return self._failure

    def end(self, failure: CommsError) -> None:
        """Every wait, now and later, ends with `failure`."""
        with self._lock:
            self._failure = failure
            self._wake()
            self._changed.notify_all()

    def _wake(self) -> None:
        try:
            self._wake_in.send(b"\0")
        except OSError:
            return  # full, so it will wake; or closed, so nobody sleeps

    def close(self, *, goodbye: bool = True) -> None:
        """Release every descriptor. A forked child releases its copies and leaves the connections alone."""
        mine = os.getpid() == self._owner
        if not mine:
            self._abandon()
            return
        self.end(CommsClosed(f"this {self._name} backend is closed; open a new one"))
        with self._lock:
            while self._polling:
                self._sleep(LONGEST)
            if self._closed:
                return
            self._closed = True
            self._selector.close()
            for link in self._links.values():
                link.leave(self._lost) if goodbye else link.socket.close()
            for end in (*self._lifelines.values(), self._wake_in, self._wake_out):
                end.close()

    def _abandon(self) -> None:
        self._failure = CommsClosed(
            f"this {self._name} backend belongs to process {self._owner}, this is {os.getpid()}: "
            "open one after the fork"
        )
        self._closed = True
        # Locks may be held by threads that do not exist here, so nothing is locked; the child has one thread.
        self._lock = threading.RLock()
        self._selector.close()
        links = (link.socket for link in self._links.values())
        for end in (*links, *self._lifelines.values(), self._wake_in, self._wake_out):
            end.close()


# A forked child that kept the sockets open would hide its parent's death from the others.
_ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()


def _abandon_all() -> None:
    for engine in list(_ENGINES):
        engine.close()


os.register_at_fork(after_in_child=_abandon_all)
