"""The thread that drives asynchronous operations, so that they go on while nobody waits for them."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchcomms.work import Work

SLICE = 5e-3  # seconds that the thread waits for one operation before it looks at the others
IDLE = 2.0  # seconds without an operation after which it ends; the next one starts it again


class _Queue:
    """What the thread shares with its owner, and all that it keeps alive."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.works: list[Work] = []
        self.thread: threading.Thread | None = None
        self.closed = False

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def serve(self) -> None:
        """The body of the thread."""
        while self._drive():
            pass  # nothing of a round stays referenced while the thread waits for work

    def _drive(self) -> bool:
        works = self._take()
        pending = [work for work in works if not work.poll()]
        with self.changed:
            ended = set(works) - set(pending)
            self.works = [work for work in self.works if work not in ended]
        if pending and not ended:
            pending[0].pause(SLICE)
        return bool(works)

    def _take(self) -> list[Work]:
        with self.changed:
            if not self.works and not self.closed:
                self.changed.wait(IDLE)
            if not self.works:
                self.thread = None
            return list(self.works)


class Progress:
    """Drives works in the order of their start. The thread starts with the first and ends when it has been idle."""

    def __init__(self) -> None:
        self._queue = _Queue()
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, self._queue.close)

    def watch(self, work: Work) -> None:
        """Drive `work` until it ends or its deadline passes."""
        queue = self._queue
        with queue.changed:
            queue.works.append(work)
            if queue.thread is None or not queue.thread.is_alive():  # a forked child has not inherited it
                queue.thread = threading.Thread(target=queue.serve, name="torchcomms progress", daemon=True)
                queue.thread.start()
            queue.changed.notify_all()

    def close(self) -> None:
        """End the thread, when what it drives has ended."""
        if os.getpid() != self._owner:
            return  # the thread is the parent's, and it may have held the lock at the fork
        thread = self._queue.thread
        self._finalizer()
        if thread is not None and thread is not threading.current_thread() and thread.is_alive():
            thread.join()
