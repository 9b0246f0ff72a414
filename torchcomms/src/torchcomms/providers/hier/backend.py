"""`HierBackend`: a wire over all ranks, a local backend inside each host, and what is composed of both."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from torchcomms.backend import P2P, Backend, Capabilities, Options, ReduceOp, Store, Ticket
from torchcomms.bootstrap import Named
from torchcomms.discovery import find
from torchcomms.errors import PeerFailed
from torchcomms.locality import Topology, find_hosts
from torchcomms.providers.choice import choose, survey
from torchcomms.providers.hier import moving, reducing
from torchcomms.providers.hier.accumulation import accumulation
from torchcomms.providers.hier.groups import Layout

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule

LOCAL = ("shm", "tcp")  # inside a host, in the order of preference
ALONE = "inproc"  # on a host with a single rank


@dataclass(frozen=True, slots=True)
class HierOptions(Options):
    """What a hier group consists of; the same on all ranks but for `host`.

    `wire` is the backend between all ranks, `local` the one inside a host (None: the first of shm and tcp that works on
    all ranks there). `host` is for tests on one machine: ranks that give different names count as being on different
    hosts.
    """

    wire: str = "tcp"
    local: str | None = None
    wire_options: Options | None = None
    local_options: Options | None = None
    host: str | None = None


class HierBackend(Backend):
    """Messages inside a host go by its local backend, others by the wire; collectives are composed of both.

    The wire joins all ranks, so every rank sees every death. Hosts may have different numbers of ranks.
    """

    name = "hier"

    def __init__(self, layout: Layout, device: str, timeout: float) -> None:
        self.layout, self.rank, self.size = layout, layout.rank, layout.size
        self.device, self.timeout = device, timeout
        self._failure: PeerFailed | None = None

    @classmethod
    def capabilities(cls) -> Capabilities:
        composed = {"all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "barrier"}
        return Capabilities(native=frozenset(composed), death_bound_ms=250.0)

    @classmethod
    def open(
        cls,
        *,
        rank: int,
        size: int,
        store: Store,
        device: str,
        epoch: int = 0,
        timeout: float,
        options: Options | None = None,
    ) -> Self:
        deadline = time.monotonic() + timeout
        asked = options if isinstance(options, HierOptions) else HierOptions()
        prefix = f"torchcomms/hier/{epoch}.{store.add(f'torchcomms/hier/{epoch}/{rank}', 1)}"
        topology = find_hosts(store, f"{prefix}/hosts", rank, size, deadline, pretended=asked.host)
        opening = _Opening(store, prefix, device, epoch, deadline)
        wire = opening.open(asked.wire, "wire", rank, size, asked.wire_options)
        try:
            local = opening.inside(topology, rank, size, asked)
        except BaseException:
            wire.close()
            raise
        return cls(Layout(topology, rank, size, wire, local, timeout), device, timeout)

    def post(self, batch: Sequence[P2P]) -> Ticket:
        self._check_usable()
        return self.layout.post(batch)

    @contextmanager
    def _coalesced(self) -> Iterator[None]:
        with self.layout.wire.coalesce(), self.layout.local.coalesce():
            yield

    def coalesce(self) -> AbstractContextManager[None]:
        return self._coalesced()

    def lost(self) -> frozenset[int]:
        return self.layout.lost()

    def abort(self, reason: str) -> None:
        self.layout.wire.abort(reason)
        self.layout.local.abort(reason)

    def close(self) -> None:
        # The wire first: its goodbye says for whose death this rank leaves, before a mate sees it gone.
        self.layout.wire.close()
        self.layout.local.close()

    def sever(self) -> None:
        """Die on both sides as a killed process would. For tests; needs backends that can."""
        for side in (self.layout.wire, self.layout.local):
            getattr(side, "sever", side.close)()

    def broadcast(self, tensor: Tensor, root: int, *, deadline: float | None = None) -> Ticket:
        until = self._until(deadline)
        return self._compose("broadcast", moving.broadcast(self.layout, tensor, root, until), until)

    def all_gather(self, outputs: Sequence[Tensor], tensor: Tensor, *, deadline: float | None = None) -> Ticket:
        until = self._until(deadline)
        return self._compose("all_gather", moving.all_gather(self.layout, outputs, tensor, until), until)

    def barrier(self, *, deadline: float | None = None) -> Ticket:
        until = self._until(deadline)
        return self._compose("barrier", moving.barrier(self.layout, until), until)

    def all_reduce(self, tensor: Tensor, op: ReduceOp, *, deadline: float | None = None) -> Ticket:
        how, until = accumulation(op, tensor.dtype), self._until(deadline)
        if how is None:
            return super().all_reduce(tensor, op, deadline=deadline)
        return self._compose("all_reduce", reducing.all_reduce(self.layout, tensor, how, until), until)

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp, *, deadline: float | None = None) -> Ticket:
        how, until = accumulation(op, tensor.dtype), self._until(deadline)
        if how is None:
            return super().reduce(tensor, root, op, deadline=deadline)
        return self._compose("reduce", reducing.reduce(self.layout, tensor, root, how, until), until)

    def reduce_scatter(
        self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, *, deadline: float | None = None
    ) -> Ticket:
        how, until = accumulation(op, output.dtype), self._until(deadline)
        if how is None:
            return super().reduce_scatter(output, inputs, op, deadline=deadline)
        return self._compose("reduce_scatter", reducing.reduce_scatter(self.layout, output, inputs, how, until), until)

    def _compose(self, operation: str, schedule: Schedule, until: float) -> Ticket:
        self._check_usable()
        return self._start(operation, self._fenced(schedule), until)

    def _fenced(self, schedule: Schedule) -> Schedule:
        try:
            yield from schedule
        except PeerFailed as error:
            # All see a death, but who left is missed only by the ranks next to it; they take the others along.
            if not self.lost():
                self._failure = error
                self.close()
            raise

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise PeerFailed(str(self._failure), ranks=self._failure.ranks) from self._failure

    def _until(self, deadline: float | None) -> float:
        return time.monotonic() + self.timeout if deadline is None else deadline


@dataclass(frozen=True, slots=True)
class _Opening:
    """Opens the parts of a group under one prefix of its store."""

    store: Store
    prefix: str
    device: str
    epoch: int
    deadline: float

    def open(self, name: str, part: str, rank: int, size: int, options: Options | None) -> Backend:
        return find(name).open(
            rank=rank,
            size=size,
            store=Named(f"{self.prefix}/{part}", self.store),
            device=self.device,
            epoch=self.epoch,
            timeout=max(1e-3, self.deadline - time.monotonic()),
            options=options,
        )

    def inside(self, topology: Topology, rank: int, size: int, asked: HierOptions) -> Backend:
        """The local backend of this rank's host, which all ranks there can use."""
        host, spot = topology.place(rank)
        mates = topology.hosts[host]
        names = LOCAL if asked.local is None else (asked.local,)
        refusals = survey(self.store, f"{self.prefix}/usable", rank, size, names, self.device, self.deadline)
        name = choose(names, {mate: refusals[mate] for mate in mates}).name if len(mates) > 1 else ALONE
        options = asked.local_options if len(mates) > 1 else None
        return self.open(name, f"host{host}", spot, len(mates), options)
