"""One checked collective: agree on the call, run it on dense buffers, write the results back.

The fingerprint and the first data go out together, so that the check costs no round trip.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcomms import fingerprint, layout
from torchcomms.backend import P2P, Backend
from torchcomms.errors import CommsTimeout
from torchcomms.fingerprint import Call

if TYPE_CHECKING:
    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import Ticket

TAG = -2


@dataclass(frozen=True, slots=True)
class Step:
    """What a collective does once agreed: `begin` (of a deadline) starts it on dense buffers, and when it is through
    the `results` go to the `targets`. One that only waits for the fingerprints begins nothing. `agreed`: where a
    backend does not work in the order of streams, it begins only when the fingerprints have come."""

    begin: Callable[[float], Ticket | None]
    targets: Sequence[Tensor] = ()
    results: Sequence[Tensor] = ()
    agreed: bool = False

    def finish(self) -> None:
        """Write the results back."""
        layout.unpack(self.targets, self.results)


@dataclass(frozen=True, slots=True)
class Plan:
    """A collective ready to run: `call` of its sequence number is what the ranks must agree on."""

    call: Callable[[int], Call]
    step: Step


class Told:
    """A ticket whose timeout also says where the ranks wait that have come: a `Ticket`."""

    __slots__ = ("_rank", "_rows", "_ticket")

    def __init__(self, ticket: Ticket, rank: int, rows: Sequence[Tensor]) -> None:
        self._ticket, self._rank, self._rows = ticket, rank, rows

    def test(self) -> bool:
        return self._ticket.test()

    def wait(self) -> None:
        self._ticket.wait()

    def wait_host(self, deadline: float) -> None:
        try:
            self._ticket.wait_host(deadline)
        except CommsTimeout as late:
            calls = fingerprint.arrived(packed(self._rows))
            others = fingerprint.told({rank: call for rank, call in calls.items() if rank != self._rank}, late.missing)
            raise CommsTimeout(f"{late}{others}", missing=late.missing, calls=calls) from late


class Checked:
    """A collective that is begun at once, in the order of a device's streams, while the ranks agree: a `Ticket`.

    Its `wait` blocks the host until all ranks have called it, and then orders the stream.
    """

    __slots__ = ("_deadline", "_exchange", "_lock", "_rows", "_started")

    def __init__(self, backend: Backend, step: Step, call: Call, deadline: float) -> None:
        self._deadline, self._lock = deadline, threading.Lock()
        with backend.coalesce():
            self._rows, exchange = _exchange(backend, call)
            started = step.begin(deadline)
        self._exchange: Ticket | None = Told(exchange, backend.rank, self._rows)
        self._started = None if started is None else Told(started, backend.rank, self._rows)

    def test(self) -> bool:
        exchange = self._exchange
        if exchange is not None and not exchange.test():
            return False
        self._agree()
        return self._started is None or self._started.test()

    def wait(self) -> None:
        self._meet(self._deadline)
        if self._started is not None:
            self._started.wait()

    def wait_host(self, deadline: float) -> None:
        self._meet(deadline)
        if self._started is not None:
            self._started.wait_host(deadline)

    def _meet(self, deadline: float) -> None:
        exchange = self._exchange
        if exchange is not None:
            exchange.wait_host(deadline)
        self._agree()

    def _agree(self) -> None:
        with self._lock:
            if self._exchange is not None:
                fingerprint.compare(packed(self._rows))
                self._exchange = None


def run(backend: Backend, plan: Plan, call: Call, deadline: float) -> Schedule:
    """The schedule of a checked collective; raises `CollectiveMismatch` if the ranks do not agree."""
    with backend.coalesce():
        rows, exchange = _exchange(backend, call)
        started = None if plan.step.agreed else plan.step.begin(deadline)
    yield Told(exchange, backend.rank, rows)
    fingerprint.compare(packed(rows))
    if plan.step.agreed:
        started = plan.step.begin(deadline)
    if started is not None:
        yield Told(started, backend.rank, rows)
    plan.step.finish()


def packed(rows: Sequence[Tensor]) -> dict[int, bytes]:
    """The fingerprints in `rows`, by rank."""
    return {rank: row.numpy().tobytes() for rank, row in enumerate(rows)}


def _exchange(backend: Backend, call: Call) -> tuple[Sequence[Tensor], Ticket]:
    rows = torch.zeros((backend.size, fingerprint.SIZE), dtype=torch.uint8).unbind(0)
    mine = rows[backend.rank]
    mine.numpy()[:] = memoryview(call.pack())
    others = [rank for rank in range(backend.size) if rank != backend.rank]
    batch = [P2P("recv", rows[rank], rank, TAG) for rank in others]
    return rows, backend.post(batch + [P2P("send", mine, rank, TAG) for rank in others])
