"""SIGINT and SIGTERM as an exception, only where it is asked for: one in the middle of a print would repeat it."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

HEEDED = (signal.SIGINT, signal.SIGTERM)


class Interrupt(Exception):
    """SIGINT or SIGTERM reached the launcher."""


class Interrupts:
    """While this context lasts, the two signals are counted."""

    def __init__(self) -> None:
        self._caught: list[str] = []
        self._raised = False
        self._before: dict[signal.Signals, Any] = {}

    @property
    def hurry(self) -> bool:
        """Whether a second one has come."""
        return len(self._caught) > 1

    def check(self) -> None:
        """Raise `Interrupt` for the first one, once."""
        if self._caught and not self._raised:
            self._raised = True
            raise Interrupt(self._caught[0])

    def __enter__(self) -> Self:
        for number in HEEDED:
            self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self._caught.append(signal.Signals(number).name)
