"""The pretend device's streams: what their work has to wait for.

Each thread has a current stream, as each process has on a real device. Computations run on the host when they are
called, after what their stream waits for; communications run in threads of their own. So a tensor that is read without
its stream having been ordered after its message is read too early, as on a real device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

PATIENCE = 60.0  # seconds after which a computation gives up waiting, so that a test ends


class Launch:
    """Work that the device was given: a flight."""

    def __init__(self, after: Sequence[Launch], work: Callable[[], None]) -> None:
        self._after, self._work = after, work
        self.done = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        """Do it, in a thread of the device."""
        try:
            for earlier in self._after:
                earlier.done.wait()
            self._work()
        except Exception as error:
            self._error = error
        self._after = ()
        self.done.set()

    def is_completed(self) -> bool:
        """Whether it is done, or failed."""
        return self.done.is_set()

    def wait(self) -> object:
        """Order the current stream after it; raises RuntimeError, as torch does, if it is known to have failed."""
        if self._error is not None:
            raise RuntimeError(str(self._error)) from self._error
        current().waits_for([self])
        return None


class Stream:
    """What the next computation of a stream has to wait for."""

    def __init__(self) -> None:
        self._pending: list[Launch] = []

    def waits_for(self, launches: Sequence[Launch]) -> None:
        """Order the stream after them."""
        self._pending = [*self.pending(), *launches]

    def pending(self) -> list[Launch]:
        """What is not done yet."""
        return [launch for launch in self._pending if not launch.is_completed()]

    def synchronize(self) -> None:
        """Block the host until all is done."""
        for launch in self.pending():
            if not launch.done.wait(PATIENCE):
                raise RuntimeError(f"the pretend device did not finish within {PATIENCE:g} seconds")
        self._pending = []


class Mark:
    """What a stream waited for at some moment: a flight."""

    def __init__(self, launches: Sequence[Launch]) -> None:
        self._launches = launches

    def is_completed(self) -> bool:
        return all(launch.is_completed() for launch in self._launches)

    def wait(self) -> object:
        current().waits_for(self._launches)
        return None


_LOCAL = threading.local()


def current() -> Stream:
    """The current stream of this thread."""
    if not hasattr(_LOCAL, "stream"):
        _LOCAL.stream = Stream()
    stream: Stream = _LOCAL.stream
    return stream


def synchronize() -> None:
    """Block until the current stream's work is done."""
    current().synchronize()


@contextmanager
def on(stream: Stream) -> Iterator[None]:
    """Make a stream current in the block."""
    before = current()
    _LOCAL.stream = stream
    try:
        yield
    finally:
        _LOCAL.stream = before


class Lane:
    """A thread of the device that works launches off in order."""

    def __init__(self) -> None:
        self._launches: SimpleQueue[Launch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="lane", daemon=True)
        self._thread.start()

    def launch(self, work: Callable[[], None]) -> Launch:
        """Have it done after what the current stream waits for."""
        launch = Launch(current().pending(), work)
        self._launches.put(launch)
        return launch

    def _work(self) -> None:
        while (launch := self._launches.get()) is not None:
            launch.run()

    def end(self) -> None:
        """Work off what is there, and end."""
        self._launches.put(None)
        self._thread.join()
