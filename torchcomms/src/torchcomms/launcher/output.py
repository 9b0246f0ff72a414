"""What the ranks write: passed on line by line, with the rank before it, and its end remembered."""

from __future__ import annotations

import os
import re
import selectors
import sys
import time
from collections.abc import Callable
from typing import IO

from torchcomms.launcher.process import Rank

Show = Callable[[int, bool, str, str], None]  # rank, whether it is stderr, the line, its end

LONGEST = 1 << 16  # bytes of a line that are held back for its end
# A progress bar ends its lines with a carriage return; passed on as one, it still redraws.
LINE = re.compile(rb"([^\r\n]*)(\r\n|\n|\r(?!\Z))")
COLOURS = (36, 33, 35, 32, 34, 31)


def printer(prefix: bool) -> Show:
    """Print to this process's own stdout and stderr; colour tells the ranks apart on a terminal."""
    coloured = {
        is_error: prefix and stream.isatty() and "NO_COLOR" not in os.environ
        for is_error, stream in ((False, sys.stdout), (True, sys.stderr))
    }

    def show(rank: int, is_error: bool, line: str, end: str) -> None:
        head = f"[{rank}] " if prefix else ""
        if coloured[is_error]:
            head = f"\x1b[{COLOURS[rank % len(COLOURS)]}m{head}\x1b[0m"
        print(f"{head}{line}", end=end, file=sys.stderr if is_error else sys.stdout, flush=True)

    return show


class Streams:
    """The pipes of all ranks."""

    def __init__(self, show: Show) -> None:
        self._show, self._selector = show, selectors.DefaultSelector()

    def add(self, rank: Rank) -> None:
        """Listen to a rank's stdout and stderr."""
        for stream, is_error in ((rank.process.stdout, False), (rank.process.stderr, True)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (rank, is_error, bytearray()))

    def pump(self, patience: float) -> bool:
        """Pass on what has been written, waiting at most `patience` seconds for it; whether there was anything."""
        if not self._selector.get_map():
            time.sleep(patience)
            return False
        events = self._selector.select(patience)
        for key, _ in events:
            self._read(key.fileobj, *key.data)  # type: ignore[arg-type]
        return bool(events)

    def close(self) -> None:
        """Pass on the rest and close the pipes."""
        while self._selector.get_map() and self.pump(0.0):
            continue
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _read(self, stream: IO[bytes], rank: Rank, is_error: bool, partial: bytearray) -> None:
        text = os.read(stream.fileno(), LONGEST)
        if not text:
            self._selector.unregister(stream)
            stream.close()
        partial += text or (b"\n" if partial else b"")
        done = 0
        for match in LINE.finditer(partial):
            self._line(rank, is_error, match[1], "\r" if match[2] == b"\r" else "\n")
            done = match.end()
        del partial[:done]
        if len(partial) > LONGEST:
            self._line(rank, is_error, bytes(partial), "\n")
            partial.clear()

    def _line(self, rank: Rank, is_error: bool, line: bytes, end: str) -> None:
        text = line.decode(errors="replace")
        if is_error:
            rank.said.append(text)
        self._show(rank.number, is_error, text, end)
