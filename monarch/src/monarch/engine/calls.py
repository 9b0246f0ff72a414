"""Calls under way: which answer belongs to which call, and when a call over several ranks is settled. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from monarch.engine.framing import Frame
from monarch.errors import ActorDied

Outcome = Frame | Exception
Sink = Callable[[Outcome], None]


@dataclass(slots=True)
class Pending:
    """A call that awaits its answer: where the answer goes, what it counted as credit, which endpoint it is for."""

    sink: Sink
    size: int
    endpoint: str


class CallTable:
    """The calls of one caller to one actor."""

    def __init__(self) -> None:
        self._next = 0
        self._open: dict[int, Pending] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, pending: Pending) -> int:
        """Number a new call."""
        self._next += 1
        self._open[self._next] = pending
        return self._next

    def take(self, call: int) -> Pending | None:
        """The call that an answer belongs to, which is then no longer under way; None for a stale answer."""
        return self._open.pop(call, None)

    def drain(self) -> list[Pending]:
        """All calls under way, which then are none, in the order in which they were made."""
        pending, self._open = list(self._open.values()), {}
        return pending


class Gather:
    """The answers of several ranks to one call: whole when all are in, or at the first death."""

    def __init__(self, ranks: tuple[int, ...]) -> None:
        self.ranks = ranks
        self.outcomes: dict[int, Outcome] = {}
        self._died = False

    def put(self, rank: int, outcome: Outcome) -> bool:
        """Take one answer; True exactly when it makes the call whole."""
        was_whole = self.whole
        if not was_whole:
            self.outcomes[rank] = outcome
            self._died = isinstance(outcome, ActorDied)
        return self.whole and not was_whole

    @property
    def whole(self) -> bool:
        return self._died or len(self.outcomes) == len(self.ranks)

    @property
    def pending(self) -> tuple[int, ...]:
        """Ranks that have not answered."""
        return tuple(rank for rank in self.ranks if rank not in self.outcomes)
