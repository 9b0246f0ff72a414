"""Who reads the sockets: one epoll set, driven by whoever waits.

A thread that waits for an answer drives the set itself, so no thread hop lies between the socket and the caller. An
asyncio loop with a pending await drives it through the epoll descriptor. Where nobody waits a background thread
drives, for deaths and output; it steps aside when asked and comes back a few milliseconds after the last use.
"""

from __future__ import annotations

import heapq
import itertools
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    import asyncio

LINGER = 0.005
"""Seconds without use after which the background thread drives."""

Handler = Callable[[int], None]


class Reactor:
    """The epoll set of one process, its timers, and the right to drive it."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._dirty: set[Callable[[], None]] = set()
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)
        self._driving = self._background = False
        self._waiters = self._ticks = self._seen = self._awaiting = 0
        self._loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._closed = False
        self._tasks: list[Callable[[], None]] = []
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.register(self._waker, select.EPOLLIN, self._woken)
        self._thread = threading.Thread(target=self._drive_in_background, name="monarch-io", daemon=True)
        self._thread.start()

    # --- what is watched ---------------------------------------------------------------------------------------

    def register(self, fd: int, events: int, handler: Handler) -> None:
        """Call `handler(events)` from the driving thread when `fd` is ready."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """Stop watching; a descriptor that is not watched is left alone."""
        if self._handlers.pop(fd, None) is not None:
            with suppress(OSError, ValueError):
                self._epoll.unregister(fd)

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back from the driving thread after so many seconds."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._numbers), callback))
        self.wake()

    def flush_soon(self, flush: Callable[[], None]) -> None:
        """Call `flush` before the next poll, or within milliseconds where nobody polls."""
        first = not self._dirty
        self._dirty.add(flush)
        if first and (loop := running_loop()) is not None:
            # What is sent in this turn of the loop goes in one write.
            loop.call_soon(self._flush)
        elif first and self._background:
            self.wake()

    def in_background(self, task: Callable[[], None]) -> None:
        """Run a task in the background thread, which lives as long as the process."""
        self._tasks.append(task)
        self.wake()
        with self._lock:
            self._turn.notify_all()

    def wake(self) -> None:
        """Have whoever drives come back from its poll."""
        with suppress(BlockingIOError):
            os.eventfd_write(self._waker, 1)

    # --- who drives --------------------------------------------------------------------------------------------

    def drive(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Drive, or wait for another thread to, until `done()`; False where `timeout` seconds pass first."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            self._waiters += 1
            self._ticks += 1
            try:
                while not done():
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    if self._driving:
                        if self._background:
                            self.wake()
                        self._turn.wait(left)
                    else:
                        self._lead(done, deadline)
            finally:
                self._waiters -= 1
                self._ticks += 1
                if self._waiters:
                    self._turn.notify_all()
        return True

    def _lead(self, done: Callable[[], bool], deadline: float | None) -> None:
        """Drive; called and left with the turn's lock held."""
        self._driving = True
        self._lock.release()
        try:
            while not done():
                left = -1.0 if deadline is None else deadline - time.monotonic()
                if deadline is not None and left <= 0:
                    return
                self._poll(left)
                if self._waiters > 1:
                    with self._lock:
                        self._turn.notify_all()
        finally:
            self._lock.acquire()
            self._driving = False

    def poll_now(self) -> None:
        """Handle what is ready, without waiting, unless another thread drives."""
        with self._lock:
            self._ticks += 1
            if self._driving:
                return
            self._driving = True
        try:
            self._poll(0)
        finally:
            with self._lock:
                self._driving = False
                if self._waiters:
                    self._turn.notify_all()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """An await begins on `loop`, which drives from now on."""
        with self._lock:
            self._awaiting += 1
            self._ticks += 1
        if loop not in self._loops:
            self._loops.add(loop)
            loop.add_reader(self._epoll.fileno(), self.poll_now)
        if self._background:
            self.wake()

    def detach(self) -> None:
        """That await ended."""
        with self._lock:
            self._awaiting -= 1
            self._ticks += 1

    def _drive_in_background(self) -> None:
        while not self._closed:
            self._await_turn()
            if self._tasks:
                self._tasks.pop(0)()
                self.wake()
                continue
            try:
                if not self._closed:
                    self._poll(-1)
            finally:
                with self._lock:
                    self._driving = self._background = False
                    if self._waiters:
                        self._turn.notify_all()

    def _await_turn(self) -> None:
        """Wait until nobody has driven for a while, or until there is a task."""
        with self._lock:
            while not self._tasks and (self._waiters or self._awaiting or self._driving or self._seen != self._ticks):
                self._seen = self._ticks
                self._turn.wait(LINGER)
                self._flush()
            if not self._tasks:
                self._driving = self._background = True

    # --- one turn ----------------------------------------------------------------------------------------------

    def _poll(self, timeout: float) -> None:
        """Handle what comes within so many seconds; a negative number has no end."""
        if self._dirty:
            self._flush()
        if self._timers:
            left = max(0.0, self._timers[0][0] - time.monotonic())
            timeout = left if timeout < 0 else min(timeout, left)
        for fd, events in self._epoll.poll(timeout):
            handler = self._handlers.get(fd)
            if handler is not None:
                handler(events)
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()
        if self._dirty:
            self._flush()

    def _flush(self) -> None:
        # Several threads may flush at once.
        with suppress(KeyError):
            while True:
                self._dirty.pop()()

    def _woken(self, events: int) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._waker)

    def close(self) -> None:
        """End the background thread and close the set; nobody may be waiting."""
        self._closed = True
        self.wake()
        with self._lock:
            self._ticks += 1
            self._turn.notify_all()
        self._thread.join(1)
        for loop in list(self._loops):
            with suppress(Exception):
                loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        os.close(self._waker)


def running_loop() -> Any:
    """The asyncio loop that runs in this thread, or None; does not import asyncio, which takes longer than all else."""
    loaded = sys.modules.get("asyncio")
    return None if loaded is None else loaded._get_running_loop()
