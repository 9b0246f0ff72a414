"""Tickets of stream-ordered operations: `wait` orders the current stream, `wait_host` and `test` ask the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from torchcomms.backend import Ticket
from torchcomms.errors import CommsError, CommsTimeout, name_ranks
from torchcomms.providers.c10d.streams import Flight
from torchcomms.providers.c10d.watch import Watch

SHORTEST, LONGEST = 20e-6, 1e-3  # seconds between two questions to the device, while one waits on the host


@dataclass(frozen=True, slots=True)
class Needs:
    """The ranks without which a ticket cannot complete, and `missing` to tell which of them a timeout names."""

    peers: AbstractSet[int]
    missing: Callable[[], frozenset[int]]


class StreamTicket:
    """Work on the device, and tickets of the control channel `beside` it; `advance` moves on what only the host can."""

    __slots__ = ("_advance", "_beside", "_flights", "_needs", "_settled", "_watch")

    def __init__(
        self,
        watch: Watch,
        flights: Sequence[Flight],
        needs: Needs,
        advance: Callable[[], None],
        beside: Sequence[Ticket] = (),
    ) -> None:
        self._watch, self._flights, self._needs = watch, flights, needs
        self._advance, self._beside = advance, beside
        self._settled = False

    def test(self) -> bool:
        if not self._settled:
            self._advance()
            if self._is_done():
                self._order()
                self._settled = True
            else:
                self._watch.check(self._needs.peers)
        return self._settled

    def wait(self) -> None:
        if not self._settled:
            self._watch.check(self._needs.peers)
            self._order()

    def wait_host(self, deadline: float) -> None:
        pause = SHORTEST
        while not self.test():
            now = time.monotonic()
            if now >= deadline:
                raise self._late()
            self._watch.sleep(min(pause, deadline - now))
            pause = min(2 * pause, LONGEST)

    def _is_done(self) -> bool:
        try:
            return all(one.test() for one in self._beside) and all(one.is_completed() for one in self._flights)
        except CommsError:
            self._watch.check()  # the group's own end is the better reason
            raise

    def _order(self) -> None:
        try:
            for ticket in self._beside:
                ticket.wait()
            for flight in self._flights:
                flight.wait()
        except CommsError:
            self._watch.check()
            raise
        except RuntimeError as error:
            raise self._watch.explain(error) from error

    def _late(self) -> CommsTimeout:
        missing = self._needs.missing()
        whom = name_ranks(missing) if missing else "the device"
        return CommsTimeout(f"still waiting for {whom} at the deadline", missing=missing)
