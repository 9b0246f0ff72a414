"""The thread that completes futures: DDP and functional code wait for a future and never for the work behind it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from torch.futures import Future

if TYPE_CHECKING:
    from torchcomms.distributed.work import Pending, Result

SLICE = 5e-3  # seconds that a wait for the oldest work blocks before the others are looked at


class Finisher:
    """Follows the works whose future somebody has asked for. The thread starts with the first and ends with `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._followed: list[tuple[Pending, Future[None]]] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def follow(self, work: Pending) -> Future[Result]:
        """The future of `work`."""
        source: Future[None] = Future()
        # A callback that raises is the one way to fail a future in the eyes of C++, where DDP waits for it.
        future = source.then(lambda _: _outcome(work))
        if work.is_completed():
            source.set_result(None)
            return future
        with self._changed:
            self._followed.append((work, source))
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"torchcomms {self._name}", daemon=True)
                self._thread.start()
        return future

    def close(self) -> None:
        """End the thread; call it when the communicators are closed, so that no work is pending any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while self._wait_for_work():
            self._followed[0][0].settles(SLICE)
            self._finish([one for one in self._followed if one[0].is_completed()])

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._followed or self._closed)
            return bool(self._followed)

    def _finish(self, ended: list[tuple[Pending, Future[None]]]) -> None:
        with self._changed:
            self._followed = [one for one in self._followed if one not in ended]
        for _, source in ended:
            source.set_result(None)


def _outcome(work: Pending) -> Result:
    if not work.is_success():
        error = work.exception()
        assert error is not None
        raise error
    return work.result()
