"""What composed collectives see of a hier group: who is where, the local group, and the rails across hosts.

A rail is the ranks at one spot of every host; an algorithm on it sees them as ranks 0 to the number of hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcomms.algorithms import scratch
from torchcomms.algorithms.messages import chunks
from torchcomms.algorithms.subgroup import Subgroup
from torchcomms.backend import P2P
from torchcomms.providers.hier.tickets import Joint, Local

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import Backend, Ticket
    from torchcomms.locality import Topology


def _renamed(message: P2P, peer: int) -> P2P:
    return P2P(message.kind, message.tensor, peer, message.tag)


class Layout:
    """One rank's place: it is `mates[spot]` of `host`. There are as many rails as the smallest host has ranks."""

    def __init__(self, topology: Topology, rank: int, size: int, wire: Backend, local: Backend, timeout: float) -> None:
        self.topology, self.rank, self.size, self.wire, self.local = topology, rank, size, wire, local
        self.host, self.spot = topology.place(rank)
        self.mates = topology.hosts[self.host]
        self.rails = min(len(ranks) for ranks in topology.hosts)
        self.timeout = timeout
        self._kept: Tensor | None = None

    def post(self, batch: Sequence[P2P]) -> Ticket:
        """Start messages: those to mates inside the host, the others on the wire."""
        near = [one for one in batch if one.peer in self.mates]
        if not near:
            return self.wire.post(batch)
        inside = self.inside(self.local.post([_renamed(one, self.mates.index(one.peer)) for one in near]))
        if len(near) == len(batch):
            return inside
        return Joint([inside, self.wire.post([one for one in batch if one.peer not in self.mates])], self.timeout)

    def inside(self, ticket: Ticket) -> Ticket:
        """A ticket of the local backend as one of the whole group."""
        return Local(self, ticket)

    def rail(self) -> Subgroup:
        """The ranks of this spot on all hosts, numbered by host; only where `spot < rails`."""
        return Subgroup(self.wire, [ranks[self.spot] for ranks in self.topology.hosts])

    def lost(self) -> frozenset[int]:
        """Ranks of the whole group that are dead."""
        return self.wire.lost() | frozenset(self.mates[rank] for rank in self.local.lost())

    def shards(self, data: Tensor) -> list[Tensor]:
        """Views of flat `data`, one for each mate; those that have no rail get empty ones."""
        return chunks(data, self.rails) + [data[:0]] * (len(self.mates) - self.rails)

    def leaders(self, root: int) -> list[int]:
        """One rank of each host; `root` for its own."""
        return [root if root in ranks else ranks[0] for ranks in self.topology.hosts]

    def carried(self, rail: int) -> list[list[int]]:
        """For each host, the ranks whose blocks `rail` carries; the rail's own rank is the first."""
        return [list(ranks[rail :: self.rails]) for ranks in self.topology.hosts]

    def scratch(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory until the end of the schedule; the wire has its own."""
        memory, self._kept = scratch.take(self._kept, shape, like)
        return memory
