"""Which ranks share a host: claimed through the store, proved by a probe of the kernel, never read from a variable.

Ranks are on one host when they can reach each other's abstract unix sockets, so within one kernel and one network
namespace: there memory can be shared by passing descriptors, and a peer's death is seen at once. Containers on one
machine that have namespaces of their own count as hosts of their own.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torchcomms.backend import Store
from torchcomms.errors import CommsTimeout, name_ranks

LEAST = 1e-3  # seconds; stores take no shorter timeout
EARLY = 20e-3  # seconds by which a store may give up before its timeout: it counts whole milliseconds


@dataclass(frozen=True, slots=True)
class Topology:
    """`hosts[h]` are the ranks of host h, ascending; hosts go by their lowest rank. The same on every rank."""

    hosts: tuple[tuple[int, ...], ...]

    def place(self, rank: int) -> tuple[int, int]:
        """The host of `rank`, and its position among the ranks there."""
        for host, ranks in enumerate(self.hosts):
            if rank in ranks:
                return host, ranks.index(rank)
        raise IndexError(f"rank {rank} is on none of {len(self.hosts)} hosts")

    def __str__(self) -> str:
        words = "; ".join(name_ranks(ranks) for ranks in self.hosts)
        return f"{len(self.hosts)} host{'s' if len(self.hosts) != 1 else ''} ({words})"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a rank says of where it is; equal `kernel` is a hint, reaching `probe` the proof."""

    kernel: str
    probe: str


def exchange(store: Store, prefix: str, rank: int, size: int, value: str, deadline: float) -> list[str]:
    """Every rank's `value`, by rank. Raises `CommsTimeout` at `deadline` (monotonic) naming those that did not come."""
    store.set(f"{prefix}/{rank}", value)
    keys = [f"{prefix}/{peer}" for peer in range(size)]
    if not _are_set(store, keys, deadline):
        missing = frozenset(peer for peer, key in enumerate(keys) if not _are_set(store, [key], 0.0))
        raise CommsTimeout(f"{name_ranks(missing)} of {size} did not come to the exchange", missing=missing)
    return [store.get(key).decode() for key in keys]


def _are_set(store: Store, keys: list[str], deadline: float) -> bool:
    try:
        store.wait(keys, timedelta(seconds=max(LEAST, deadline - time.monotonic())))
    except (RuntimeError, TimeoutError):
        if time.monotonic() < deadline - EARLY:
            raise  # not late: the store itself is broken
        return False
    return True


def find_hosts(
    store: Store, prefix: str, rank: int, size: int, deadline: float, *, pretended: str | None = None
) -> Topology:
    """The topology of all ranks, found by two exchanges under `prefix`, which must be fresh.

    `pretended` is for tests: ranks that give different names count as being on different hosts. It can only part
    ranks; a name alone never joins two that do not reach each other.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        claim = Claim(f"{kernel()} {pretended or ''}", _listen(probe))
        told = exchange(store, f"{prefix}/claim", rank, size, json.dumps([claim.kernel, claim.probe]), deadline)
        first = _first_reached([Claim(*json.loads(one)) for one in told[:rank]], claim)
        # Nobody closes its probe before all have tried: the second exchange is the barrier.
        reached = exchange(store, f"{prefix}/reached", rank, size, str(rank if first is None else first), deadline)
    return group([int(one) for one in reached])


def kernel() -> str:
    """What this rank's kernel and network namespace call themselves; unique where they do not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.stat("/proc/self/ns/net")
    except OSError:
        return secrets.token_hex(16)
    return f"{boot} {namespace.st_dev}:{namespace.st_ino}"


def _listen(probe: socket.socket) -> str:
    """Bind to a name that only the store tells: whoever reaches it is on this host. Empty where there is no such."""
    name = f"torchcomms-{secrets.token_hex(16)}"
    with suppress(OSError):
        probe.bind("\0" + name)
        return name
    return ""


def _first_reached(lower: Iterable[Claim], mine: Claim) -> int | None:
    """The lowest rank that claims this kernel and whose probe really is here."""
    return next((rank for rank, claim in enumerate(lower) if claim.kernel == mine.kernel and reaches(claim)), None)


def reaches(claim: Claim) -> bool:
    """Whether the probe of `claim` is in this network namespace of this kernel."""
    if not claim.probe:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect("\0" + claim.probe)
        except OSError:
            return False
    return True


def group(first: Sequence[int]) -> Topology:
    """The topology in which rank r is on the host of rank `first[r]`, at most r itself."""
    hosts: dict[int, list[int]] = {}
    leaders = list(range(len(first)))
    for rank, reached in enumerate(first):
        leaders[rank] = leaders[reached]
        hosts.setdefault(leaders[rank], []).append(rank)
    return Topology(tuple(tuple(ranks) for _, ranks in sorted(hosts.items())))
