"""A group of ranks in one thread, with real tensors and random delays: the generators of a backend, run to their end.

For tests of schedules. It does what a backend may do at its worst: a send takes its bytes at the last moment before it
is complete, a receive's buffer holds garbage until its message is there, and messages of different pairs overtake each
other. A seed gives the same course again.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcomms.errors import CommsTimeout, InvalidCall, MessageMismatch, name_ranks
from torchcomms.providers.inbox import memory_of
from torchcomms.sim.ticket import SimTicket

if TYPE_CHECKING:
    from torchcomms.algorithms.choice import Table
    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import P2P

GARBAGE = b"\xa5"


class Rehearsed:
    """One rank's view: a `Group` of the algorithms."""

    def __init__(self, rehearsal: Rehearsal, rank: int, choices: Table | None) -> None:
        self._rehearsal, self.rank, self.size, self.choices = rehearsal, rank, rehearsal.size, choices

    def post(self, batch: Sequence[P2P]) -> SimTicket:
        """Start messages."""
        return self._rehearsal.post(self.rank, batch)

    def scratch(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory of its own, full of garbage."""
        memory = torch.empty(shape, dtype=like.dtype)
        memory_of(memory)[:] = GARBAGE * memory.nbytes
        return memory


class Rehearsal:
    """`size` ranks; `run` plays one schedule on all of them."""

    def __init__(self, size: int, *, seed: int = 0, choices: Table | None = None) -> None:
        self.size = size
        self.groups = [Rehearsed(self, rank, choices) for rank in range(size)]
        self._random = random.Random(seed)
        self._now, self._count = 0.0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._last: defaultdict[tuple[int, int, str], float] = defaultdict(float)
        self._expected: defaultdict[tuple[int, int, int], deque[tuple[memoryview, SimTicket]]] = defaultdict(deque)
        self._early: defaultdict[tuple[int, int, int], deque[bytes]] = defaultdict(deque)
        self._schedules: dict[int, Schedule] = {}

    def run(self, schedule: Callable[[Rehearsed], Schedule]) -> None:
        """Play `schedule(group)` on every rank; `CommsTimeout` names the ranks that wait for ever."""
        self._schedules = {rank: schedule(group) for rank, group in enumerate(self.groups)}
        for rank in range(self.size):
            self._soon(lambda rank=rank: self._step(rank))  # type: ignore[misc]
        while self._events:
            self._now, _, event = heapq.heappop(self._events)
            event()
        stray = sum(map(len, self._early.values())) + sum(map(len, self._expected.values()))
        if self._schedules or stray:
            raise CommsTimeout(
                f"{name_ranks(self._schedules)} wait for ever, {stray} messages or receives are without a match",
                missing=self._schedules,
            )

    def post(self, rank: int, batch: Sequence[P2P]) -> SimTicket:
        """Start the messages of a rank: receives first."""
        ticket = SimTicket(len(batch))
        for one in sorted(batch, key=lambda one: one.kind):
            if not 0 <= one.peer < self.size:
                raise InvalidCall(f"peer {one.peer} is not a rank of this group of {self.size}")
            view = memory_of(one.tensor)
            if one.kind == "recv":
                view[:] = GARBAGE * view.nbytes
                self._expected[one.peer, rank, one.tag].append((view, ticket))
                self._match((one.peer, rank, one.tag))
            else:
                self._leave((rank, one.peer, one.tag), view, ticket)
        return ticket

    def _soon(self, event: Callable[[], None], pair: tuple[int, int, str] | None = None) -> None:
        """Some time later; events of one pair stay in order."""
        moment = self._now + self._random.expovariate(1.0)
        if pair is not None:
            moment = self._last[pair] = max(moment, self._last[pair])
        self._count += 1
        heapq.heappush(self._events, (moment, self._count, event))

    def _leave(self, channel: tuple[int, int, int], view: memoryview, ticket: SimTicket) -> None:
        source, target, _ = channel

        def arrive(payload: bytes) -> None:
            self._early[channel].append(payload)
            self._match(channel)

        def leave() -> None:
            payload = bytes(view)
            self._through(ticket)
            self._soon(lambda: arrive(payload), (source, target, "arrive"))

        self._soon(leave, (source, target, "leave"))

    def _match(self, channel: tuple[int, int, int]) -> None:
        early, expected = self._early[channel], self._expected[channel]
        while early and expected:
            payload, (view, ticket) = early.popleft(), expected.popleft()
            if len(payload) != view.nbytes:
                raise _mismatch(channel, view.nbytes, len(payload))
            view[:] = payload
            self._through(ticket)

    def _through(self, ticket: SimTicket) -> None:
        ticket.pending -= 1
        if not ticket.pending and ticket.waiter is not None:
            rank = ticket.waiter
            self._soon(lambda: self._step(rank))

    def _step(self, rank: int) -> None:
        for ticket in self._schedules[rank]:
            assert isinstance(ticket, SimTicket)
            if ticket.pending:
                ticket.waiter = rank
                return
        del self._schedules[rank]


def _mismatch(channel: tuple[int, int, int], expected: int, actual: int) -> MessageMismatch:
    source, target, tag = channel
    return MessageMismatch(
        f"rank {source} sent {actual} bytes to rank {target}, which expects {expected}",
        peer=source,
        tag=tag,
        expected=expected,
        actual=actual,
    )
