"""What every wait of a stream-ordered group looks at besides its own work: whether the group has ended, who is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Set as AbstractSet

from torchcomms.errors import CommsAborted, CommsError, PeerFailed, name_ranks
from torchcomms.providers.inbox import departure
from torchcomms.providers.tcp import TcpBackend

LOOK = 0.05  # seconds between two looks at the control channel
GRACE = 0.5  # seconds that the device may take to do what a rank that has left in order has begun


class Watch:
    """The end of a group, its dead and those that left, and a sleep that the end cuts short."""

    def __init__(self, control: TcpBackend) -> None:
        self._control = control
        self._failure: CommsError | None = None
        self._ended = threading.Event()
        self._looked = time.monotonic()
        self._lost: frozenset[int] = frozenset()
        self._left: dict[int, float] = {}

    def end(self, failure: CommsError) -> None:
        """Every wait, now and later, ends with `failure`, unless the group has ended already."""
        self._failure = self._failure or failure
        self._ended.set()

    @property
    def ended(self) -> bool:
        """Whether the group has ended on this rank."""
        return self._ended.is_set()

    def lost(self) -> frozenset[int]:
        """Ranks known to be dead, after a look at the control channel."""
        if self._failure is None:
            self._looked = time.monotonic()
            self._lost |= self._control.lost()
        return self._lost

    def leaves(self, rank: int) -> None:
        """Nothing more comes from this rank."""
        self._left.setdefault(rank, time.monotonic())

    def check(self, needed: AbstractSet[int] = frozenset()) -> None:
        """Raise why nothing can complete any more that needs these ranks, if that is so."""
        if self._failure is not None:
            raise self._failure
        now = time.monotonic()
        lost = self.lost() if now >= self._looked + LOOK else self._lost
        if lost:
            raise PeerFailed(f"{name_ranks(lost)} died: gone without a goodbye", ranks=lost)
        for rank in needed & self._left.keys():
            if now >= self._left[rank] + GRACE:
                raise departure(rank)

    def explain(self, error: RuntimeError) -> CommsError:
        """What a failure of the library means: torch has one word for all."""
        if isinstance(error, CommsError) and self._failure is None:
            return error
        if self._failure is not None:
            return self._failure
        lost = self.lost()
        if lost:
            return PeerFailed(f"{name_ranks(lost)} died: {error}", ranks=lost)
        return CommsAborted(f"the library gave up: {error}", reason=str(error))

    def sleep(self, seconds: float) -> None:
        """Sleep, at most until the group ends."""
        self._ended.wait(seconds)
