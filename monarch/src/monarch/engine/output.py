"""Output of child processes: whole lines, with a prefix that says who wrote them."""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from monarch.engine.reactor import Reactor

LAST_LINES = 20
CHUNK = 1 << 16


class Lines:
    """Cuts bytes into lines; a line that is not ended stays until it is. No I/O."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def end(self) -> list[str]:
        """The line that was never ended, if there is one."""
        rest, self._rest = self._rest, b""
        return [rest.decode(errors="replace")] if rest else []


class Pump:
    """Moves one pipe of one child to this process's stream; `prefix()` None: nothing is shown, only remembered."""

    def __init__(self, reactor: Reactor, fd: int, stream: str, prefix: Callable[[], str | None]) -> None:
        os.set_blocking(fd, False)
        self._reactor, self._fd, self._stream, self._prefix = reactor, fd, stream, prefix
        self._lines = Lines()
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        reactor.register(fd, select.EPOLLIN, self._ready)

    def _ready(self, events: int) -> None:
        with suppress(BlockingIOError):
            if data := os.read(self._fd, CHUNK):
                self._show(self._lines.feed(data))
            else:
                self.close()

    def _show(self, lines: list[str]) -> None:
        prefix = self._prefix()
        self.last.extend(lines)
        if prefix is None or not lines:
            return
        # Looked up now: a test or a notebook may have replaced it.
        out: TextIO = getattr(sys, self._stream)
        out.write("".join(f"{prefix}{line}\n" for line in lines))
        out.flush()

    def close(self) -> None:
        """Show what is left in the pipe, without waiting for more, and close it. Idempotent."""
        if self._fd < 0:
            return
        self._reactor.unregister(self._fd)
        fd, self._fd = self._fd, -1
        # Bounded: a grandchild that still writes must not keep this thread.
        with suppress(BlockingIOError):
            for _ in range(64):
                self._show(self._lines.feed(os.read(fd, CHUNK)))
        self._show(self._lines.end())
        os.close(fd)
