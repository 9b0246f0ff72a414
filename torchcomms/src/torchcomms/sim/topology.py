"""The model of a cluster: hosts of ranks, and what a message, a copied byte and a reduced byte cost.

The alpha-beta-gamma model (Hockney 1994; Thakur, Rabenseifner and Gropp 2005) with LogGP's gap: a message of n bytes
arrives `latency + n * byte` after it set out. Ranks of a host share its channel, which takes `gap + n * shared` for
each message; hosts of a pod share the pod's way to the spine. A message moves at its own rate, and is through when the
channels have had time for it and for all that came before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchcomms.errors import InvalidCall


@dataclass(frozen=True, slots=True)
class Link:
    """One class of links; seconds, and seconds per byte.

    `byte` is what a rank needs to send, and to receive, a byte by itself; `gap` and `shared` what a message and a byte
    need of the channel that all ranks of a host share: the memory bus inside, the NIC (each way its own) between hosts.
    """

    latency: float
    byte: float
    gap: float = 0.0
    shared: float = 0.0


@dataclass(frozen=True, slots=True)
class Topology:
    """`hosts` times `local` ranks, numbered host by host.

    `post` seconds of a rank's own time go into each message that it sends or receives; `copy` and `reduce` are seconds
    per byte written by a copy or folded into a partial result. With `pod` hosts under one leaf switch, a message
    between pods takes `spine` seconds per byte of the pod's way up and of the other's way down, which its hosts share.
    """

    hosts: int
    local: int
    inside: Link
    between: Link
    post: float = 0.0
    copy: float = 0.0
    reduce: float = 0.0
    pod: int = 0
    spine: float = 0.0

    def __post_init__(self) -> None:
        if self.hosts < 1 or self.local < 1:
            raise InvalidCall(f"{self.hosts} hosts of {self.local} ranks: both are 1 or more")
        if min(self.inside.latency, self.between.latency) <= 0:
            raise InvalidCall("a message takes some time: make both latencies greater than 0")
        if self.pod < 0 or (self.pod and self.hosts % self.pod):
            raise InvalidCall(f"{self.hosts} hosts do not fill pods of {self.pod}; make one a multiple of the other")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.hosts * self.local

    @property
    def cell(self) -> int:
        """The ranks of the smallest unit of which the cluster is made: a host or a pod."""
        return self.local * (self.pod or 1)


def example(hosts: int, local: int = 8) -> Topology:
    """A cluster of the present: hosts of accelerators on a fast local fabric, one 400 Gb/s NIC for each of eight.

    Inside: 2 µs, 100 GB/s for a rank, the fabric not shared. Between: 5 µs, 50 GB/s for a rank, and 50 GB/s of NIC for
    each rank of a host. 0.3 µs for a message, 1 TB/s to copy and to reduce. Round figures, not a measurement.
    """
    return Topology(
        hosts,
        local,
        inside=Link(2e-6, 1 / 100e9),
        between=Link(5e-6, 1 / 50e9, shared=1 / (50e9 * local)),
        post=0.3e-6,
        copy=1e-12,
        reduce=1e-12,
    )
