"""The simulation: schedules of ghosts over the model of a cluster, on a virtual clock, in one thread.

An event is a rank that goes on, a message that leaves, or a message that reaches its host. Events of one moment are
taken in the order of the rank's place in its cell and of its messages, which a symmetry of the cluster keeps: so the
representatives alone give, to the last bit, the times that all ranks give.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, cast

from torchcomms.errors import CommsTimeout, InvalidCall, MessageMismatch, name_ranks
from torchcomms.sim.channels import Channels
from torchcomms.sim.ghosts import GhostGroup
from torchcomms.sim.report import Hot, Report
from torchcomms.sim.symmetry import Symmetry
from torchcomms.sim.ticket import SimTicket
from torchcomms.sim.topology import Topology

if TYPE_CHECKING:
    from torchcomms.algorithms.choice import Table
    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import P2P

STEP, LEAVE, REACH = range(3)
INSIDE, BETWEEN, SPINE = range(3)
CLASSES = ("inside", "between", "spine")
Channel = tuple[int, int]


class SimRank(GhostGroup):
    """One simulated rank: its clock and its messages."""

    def __init__(self, simulation: Simulation, rank: int, choices: Table | None) -> None:
        super().__init__(rank, simulation.topology.size, choices)
        self._simulation = simulation
        self.clock, self.sent = 0.0, 0
        self.copied_bytes = self.reduced_bytes = 0.0
        self.expected: dict[Channel, deque[tuple[SimTicket, float]]] = {}
        self.early: dict[Channel, deque[tuple[float, float]]] = {}
        self.schedule: Schedule | None = None

    def post(self, batch: Sequence[P2P]) -> SimTicket:
        """Start messages; each costs the rank a moment."""
        self.clock += self._simulation.topology.post * len(batch)
        ticket = SimTicket(len(batch))
        for one in batch:
            if one.kind == "recv":
                self._simulation.expect(self, (one.peer, one.tag), one.tensor.nbytes, ticket)
        for one in batch:
            if one.kind == "send":
                self._simulation.send(self, one.peer, one.tag, one.tensor.nbytes, ticket)
        return ticket

    def copied(self, nbytes: float) -> None:
        self.clock += nbytes * self._simulation.topology.copy
        self.copied_bytes += nbytes

    def reduced(self, nbytes: float) -> None:
        self.clock += nbytes * self._simulation.topology.reduce
        self.reduced_bytes += nbytes


class Simulation:
    """One run of one schedule; make a new one for another."""

    def __init__(self, topology: Topology, symmetry: Symmetry, choices: Table | None = None) -> None:
        if symmetry.size != topology.size or symmetry.cell % topology.cell:
            raise InvalidCall(f"{symmetry} does not move the hosts of {topology} as wholes")
        self.topology, self.symmetry = topology, symmetry
        count = symmetry.representatives
        self.ranks = [SimRank(self, rank, choices) for rank in range(count)]
        hosts = count // topology.local
        pods = max(1, count // topology.cell)
        self._sending, self._receiving = Channels("sends of rank", count), Channels("receives of rank", count)
        self._bus, self._nic_out = Channels("inside of host", hosts), Channels("way out of host", hosts)
        self._nic_in = Channels("way into host", hosts)
        self._up, self._down = Channels("way up from pod", pods), Channels("way down to pod", pods)
        self._messages, self._nbytes = [0, 0, 0], [0.0, 0.0, 0.0]
        # (moment, place in the cell, number of the message, rank, kind, ...)
        self._events: list[tuple[Any, ...]] = []

    def run(self, schedule: Callable[[GhostGroup], Schedule]) -> Report:
        """Run `schedule(group)` on every rank from moment 0; `CommsTimeout` names those that would wait for ever."""
        with _uncollected():
            self._run(schedule)
        stuck = [one.rank for one in self.ranks if one.schedule is not None]
        if stuck or any(one.early or one.expected for one in self.ranks):
            raise CommsTimeout(f"{name_ranks(stuck)} wait for ever, or messages are without a match", missing=stuck)
        return self._report()

    def _run(self, schedule: Callable[[GhostGroup], Schedule]) -> None:
        for one in self.ranks:
            one.schedule = schedule(one)
            heappush(self._events, (0.0, one.rank % self.topology.cell, 0, one.rank, STEP))
        cell, events = self.topology.cell, self._events
        while events:
            event = heappop(events)
            if event[4] == STEP:
                self._step(self.ranks[event[3]], event[0], cell)
            elif event[4] == LEAVE:
                self._leave(event[0], event[2], event[3], *event[5:])
            else:
                self._reach(event[0], *event[5:])

    def _step(self, rank: SimRank, moment: float, cell: int) -> None:
        rank.clock = moment
        assert rank.schedule is not None
        for ticket in cast("Iterator[SimTicket]", rank.schedule):
            if ticket.pending:
                ticket.waiter = rank.rank
                return
            if ticket.ready > rank.clock:
                heappush(self._events, (ticket.ready, rank.rank % cell, rank.sent, rank.rank, STEP))
                return
        rank.schedule = None

    def send(self, rank: SimRank, peer: int, tag: int, nbytes: float, ticket: SimTicket) -> None:
        """A message sets out when the rank's earlier ones are on their way."""
        rank.sent += 1
        local = self.topology.local
        kind = INSIDE if rank.rank // local == peer // local else BETWEEN
        link = self.topology.inside if kind == INSIDE else self.topology.between
        begin = self._sending.take(rank.rank, rank.clock, nbytes * link.byte, nbytes)
        self._messages[kind] += 1
        self._nbytes[kind] += nbytes
        # The host's channel is taken in the order of moments, so not before this one has come.
        heappush(
            self._events,
            (begin, rank.rank % self.topology.cell, rank.sent, rank.rank, LEAVE, peer, tag, nbytes, kind, ticket),
        )

    def _leave(
        self, moment: float, number: int, source: int, peer: int, tag: int, nbytes: float, kind: int, ticket: SimTicket
    ) -> None:
        topology = self.topology
        link = topology.inside if kind == INSIDE else topology.between
        end = moment + nbytes * link.byte
        busy = link.gap + nbytes * link.shared
        if busy:
            shared = self._bus if kind == INSIDE else self._nic_out
            end = max(end, shared.take(source // topology.local, moment, busy, nbytes) + busy)
        pods = source // topology.cell, peer // topology.cell
        if topology.pod and pods[0] != pods[1]:
            busy = nbytes * topology.spine
            end = max(end, self._up.take(pods[0], moment, busy, nbytes) + busy)
            self._messages[SPINE] += 1
            self._nbytes[SPINE] += nbytes
        self._through(ticket, end)
        seen, target = self.symmetry.fold(source, peer)
        place, head, tail = source % topology.cell, moment + link.latency, end + link.latency
        heappush(self._events, (head, place, number, source, REACH, target, seen, tag, nbytes, kind, tail))

    def _reach(self, moment: float, target: int, source: int, tag: int, nbytes: float, kind: int, end: float) -> None:
        topology = self.topology
        link = topology.inside if kind == INSIDE else topology.between
        if kind == BETWEEN:
            pods = source // topology.cell, target // topology.cell
            if topology.pod and pods[0] != pods[1]:
                busy = nbytes * topology.spine
                end = max(end, self._down.take(pods[1], moment, busy, nbytes) + busy)
            busy = link.gap + nbytes * link.shared
            if busy:
                end = max(end, self._nic_in.take(target // topology.local, moment, busy, nbytes) + busy)
        stretch = nbytes * link.byte
        end = max(end, self._receiving.take(target, moment, stretch, nbytes) + stretch)
        rank, channel = self.ranks[target], (source, tag)
        waiting = rank.expected.get(channel)
        if waiting:
            ticket, expected = waiting.popleft()
            if not waiting:
                del rank.expected[channel]
            self._match(rank, source, expected, nbytes)
            self._through(ticket, end)
        else:
            rank.early.setdefault(channel, deque()).append((end, nbytes))

    def expect(self, rank: SimRank, channel: Channel, nbytes: float, ticket: SimTicket) -> None:
        """A receive is posted; its message may have come before."""
        early = rank.early.get(channel)
        if not early:
            rank.expected.setdefault(channel, deque()).append((ticket, nbytes))
            return
        end, actual = early.popleft()
        if not early:
            del rank.early[channel]
        self._match(rank, channel[0], nbytes, actual)
        self._through(ticket, end)

    def _match(self, rank: SimRank, source: int, expected: float, actual: float) -> None:
        if expected != actual:
            raise MessageMismatch(
                f"rank {source} sends {actual} bytes to rank {rank.rank}, which expects {expected}",
                peer=source,
                expected=round(expected),
                actual=round(actual),
            )

    def _through(self, ticket: SimTicket, moment: float) -> None:
        ticket.pending -= 1
        if moment > ticket.ready:
            ticket.ready = moment
        if not ticket.pending and ticket.waiter is not None:
            rank = self.ranks[ticket.waiter]
            ticket.waiter = None
            when = ticket.ready if ticket.ready > rank.clock else rank.clock
            heappush(self._events, (when, rank.rank % self.topology.cell, rank.sent, rank.rank, STEP))

    def _report(self) -> Report:
        times = self.symmetry.size // len(self.ranks)
        channels = (
            self._sending, self._receiving, self._bus, self._nic_out, self._nic_in, self._up, self._down,
        )  # fmt: skip
        hot = [one for one in (each.hottest(times) for each in channels) if one is not None]
        used = [index for index in (INSIDE, BETWEEN, SPINE) if self._messages[index]]
        return Report(
            seconds=max(one.clock for one in self.ranks),
            ranks=self.symmetry.size,
            simulated=len(self.ranks),
            messages={CLASSES[index]: self._messages[index] * times for index in used},
            nbytes={CLASSES[index]: round(self._nbytes[index] * times) for index in used},
            copied=round(max(one.copied_bytes for one in self.ranks)),
            reduced=round(max(one.reduced_bytes for one in self.ranks)),
            hot=tuple(sorted(hot, key=_busy, reverse=True)),
        )


def _busy(link: Hot) -> float:
    return link.busy


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector: it would look through millions of live objects again and again, and find nothing."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
