"""The messages of one gloo group on one rank: the links to its peers, who is gone, and the waits.

Every rank has a receive posted for every other at all times, so a death is seen by all of them at once, and not only by
those who happen to wait for the dead one. A control channel beside (the tcp backend) sees deaths that gloo's
connections hide: a forked child keeps those of its parent open.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

import torch

from torchcomms.backend import P2P
from torchcomms.errors import CommsClosed, CommsError, CommsTimeout, EarlyOverflow, name_ranks
from torchcomms.providers.c10d import frame
from torchcomms.providers.c10d.link import NOTHING, Group, Link
from torchcomms.providers.inbox import Allowance, Arrival, Batch, Inbox, departure, outcome
from torchcomms.providers.tcp import TcpBackend

LOOK = 0.05  # seconds between two looks at the control channel
PATIENCE = 1.0  # seconds that a peer may take to read our goodbye


class GlooEngine:
    """The links of one group and what its ranks wait for."""

    def __init__(self, group: Group, control: TcpBackend, early_limit: float = float("inf")) -> None:
        self._group, self._control, self._owner = group, control, os.getpid()
        self._rank, self._size = control.rank, control.size
        self._changed = threading.Condition()
        allowance = Allowance(early_limit)
        self._own = Inbox(self._rank, allowance)
        self._lost: set[int] = set()
        self._left: set[int] = set()
        self._failure: CommsError | None = None
        self._ending = self._closed = False
        self._looked = time.monotonic()
        self._links = {peer: Link(group, peer, allowance) for peer in range(self._size) if peer != self._rank}
        for link in self._links.values():
            link.start(self._read)
        _ENGINES.add(self)

    def post(self, requests: Sequence[P2P]) -> Batch:
        """Start a batch: receives first, so that what comes in finds its place."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            batch = Batch(requests, self._size)
            for message in batch.messages:
                if not message.sending:
                    self._inbox(message.peer).expect(message)
            self._send(batch)
            for peer in batch.missing() & self._left:
                batch.fail(departure(peer))
            self._changed.notify_all()
        return batch

    def _inbox(self, peer: int) -> Inbox:
        return self._own if peer == self._rank else self._links[peer].inbox

    def _send(self, batch: Batch) -> None:
        for message in batch.messages:
            if message.sending and message.peer == self._rank:
                self._own.deliver(message)
            elif message.sending and message.peer not in self._lost | self._left:
                with suppress(RuntimeError):  # its connection has just ended, which the reading thread will tell
                    self._links[message.peer].send(message)

    def test(self, batch: Batch) -> bool:
        """Whether the batch is complete."""
        with self._changed:
            self._look()
            return outcome(batch, self._failure, self._lost)

    def wait(self, batch: Batch, deadline: float) -> None:
        """Block until the batch is complete."""
        with self._changed:
            while not outcome(batch, self._failure, self._lost):
                now = time.monotonic()
                if now >= deadline:
                    missing = batch.missing()
                    raise CommsTimeout(f"still waiting for {name_ranks(missing)} at the deadline", missing=missing)
                self._changed.wait(min(deadline - now, LOOK))
                self._look()

    def lost(self) -> frozenset[int]:
        """Ranks known to be dead."""
        with self._changed:
            self._look(at_once=True)
            return frozenset(self._lost)

    def _look(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self._failure is None and (at_once or now >= self._looked + LOOK):
            self._looked = now
            self._lost |= self._control.lost() - self._left

    def end(self, failure: CommsError) -> None:
        """Every wait, now and later, ends with `failure`."""
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def _read(self, link: Link) -> None:
        """The body of a link's thread."""
        try:
            while self._take(link):
                continue
        except RuntimeError:  # how gloo reports a connection's end, and torch every failure of gloo
            with self._changed:
                if link.peer not in self._left:
                    (self._left if self._ending else self._lost).add(link.peer)
        with self._changed:
            for message in [] if self._ending else link.unconfirmed():
                message.batch.fail(departure(link.peer))
            self._changed.notify_all()

    def _take(self, link: Link) -> bool:
        """Take one frame, and the payload that it announces; False after a goodbye."""
        head = link.next_frame()
        kind, number, length = frame.parse(head)
        with self._changed:
            if kind != frame.DATA:
                return self._told(link, kind, number, frame.blamed(head, length))
            arrival = self._arrive(link, number, length)
            if length <= frame.ROOM:
                arrival.target[:] = frame.payload(head, length)
        if length > frame.ROOM:
            link.fill(arrival.target)
        with self._changed:
            arrival.finish()
            link.tell_read(at_once=length > frame.ROOM)
            self._changed.notify_all()
        return True

    def _arrive(self, link: Link, tag: int, length: int) -> Arrival:
        try:
            return link.inbox.arrive(tag, length)
        except EarlyOverflow as error:
            self._failure = self._failure or error
            self._changed.notify_all()
            return Arrival(None, length)

    def _told(self, link: Link, kind: int, number: int, blamed: frozenset[int]) -> bool:
        if kind == frame.READ:
            link.confirm(number)
            link.tell_read(at_once=False)
        elif kind == frame.SEEN:
            link.seen = True
        else:
            self._departed(link, blamed)
        self._changed.notify_all()
        return kind != frame.GOODBYE

    def _departed(self, link: Link, blamed: frozenset[int]) -> None:
        # It may have left because of deaths that this rank will see later.
        self._lost |= blamed & self._links.keys() - self._left
        self._left.add(link.peer)
        link.inbox.fail(departure(link.peer))
        with suppress(RuntimeError):  # it may have gone without waiting for the answer
            link.tell(frame.pack(frame.SEEN))

    def close(self, *, goodbye: bool = True) -> None:
        """Release threads and descriptors. A forked child leaves the connections alone."""
        if os.getpid() != self._owner:
            self._abandon()
            return
        self.end(CommsClosed("this gloo backend is closed; open a new one"))
        with self._changed:
            if self._ending:
                self._changed.wait_for(lambda: self._closed)
                return
            self._ending = True
            if goodbye:
                self._take_leave()
        self._cut()
        for link in self._links.values():
            link.join()
        self._control.close() if goodbye else self._control.sever()
        self._release()

    def _take_leave(self) -> None:
        """Say goodbye; what was sent before has been read when it is answered."""
        staying = [link for link in self._links.values() if link.peer not in self._lost | self._left]
        for link in staying:
            with suppress(RuntimeError):
                link.tell(frame.goodbye(self._lost))
        self._changed.wait_for(lambda: all(link.seen or link.peer in self._left for link in staying), PATIENCE)

    def _cut(self) -> None:
        """End the waits of all links: gloo has no abort, but it closes all connections when a wait times out."""
        for peer in self._links:
            with suppress(RuntimeError):
                self._group.recv([torch.empty(1, dtype=torch.uint8)], peer, NOTHING).wait(timedelta(milliseconds=1))

    def _release(self) -> None:
        with self._changed:
            self._links.clear()
            del self._group
            self._closed = True
            self._changed.notify_all()

    def _abandon(self) -> None:
        self._failure = CommsClosed(
            f"this gloo backend belongs to process {self._owner}, this is {os.getpid()}: open one after the fork"
        )
        if self._ending:
            return
        self._ending = self._closed = True
        # Locks may be held by threads that do not exist here; the child has one thread.
        self._changed = threading.Condition()
        # The group's destructor would wait for threads that do not exist here either: it must never run.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))


_ENGINES: weakref.WeakSet[GlooEngine] = weakref.WeakSet()


def _abandon_all() -> None:
    for engine in list(_ENGINES):
        engine.close()


os.register_at_fork(after_in_child=_abandon_all)
