"""Collectives between two hosts of two ranks each: hier and tcp beside gloo, over a cable of one gigabit a second.

The hosts are network namespaces of this machine, so this needs root; the cable is a virtual one that is throttled,
which makes the bytes that cross it count as they do between machines, whatever else this machine does.
"""

from __future__ import annotations

import os
import signal

from rank import Gloo, Ours, serve
from turns import ROUNDS, Case, measured, notes, run, table
from world import World

from torchcomms.testing.namespaces import Hosts, enter, joined

NAMES = ("hier", "tcp", "gloo")
PLACES = (0, 0, 1, 1)  # the host of each rank
RATE = "1gbit"
KIB, MIB = 1 << 10, 1 << 20
CASES = (
    Case("all_reduce", 8, inner=5, samples=10),
    Case("all_reduce", 256 * KIB, inner=1, samples=10),
    Case("all_reduce", 4 * MIB, inner=1, samples=4),
    *(Case(name, 4 * MIB, inner=1, samples=4) for name in ("broadcast", "all_gather", "reduce_scatter")),
    Case("barrier", 0, inner=5, samples=10),
)


class Apart(World):
    """A library whose ranks are on two hosts."""

    def __init__(self, name: str, hosts: Hosts) -> None:
        super().__init__(name, len(PLACES))
        self._hosts = hosts

    def _fork(self, rank: int) -> None:
        child = os.fork()
        if child:
            self._forked.append(child)
            return
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            enter(self._hosts.names[PLACES[rank]])
            os.environ["GLOO_SOCKET_IFNAME"] = self._hosts.devices[PLACES[rank]]
            group = (Gloo if self.name == "gloo" else Ours)(self.name, rank, self.size)
            group.address = self._hosts.addresses[0]
            serve(group, f"{self._folder}/driver")
        finally:
            os._exit(0)


def measure() -> tuple[list[dict], list[str]]:
    """Rows and section."""
    with joined() as hosts:
        hosts.throttle(RATE)
        started = [Apart(name, hosts).start() for name in NAMES]
        for group in started:
            group.open()
        rows, absent = measured(CASES, started, [], len(PLACES), ROUNDS, ())
    return rows, [
        "## Between two hosts",
        "Microseconds of a call on the slowest rank, median and quartiles; two ranks in each of two network namespaces",
        f"joined by a virtual cable of {RATE} each way. hier composes: it reduces inside the host first.",
        "",
        *table(rows, NAMES, "4 ranks, 2 hosts", "wire"),
        *notes(absent),
    ]


if __name__ == "__main__":
    run(__file__, __doc__, measure)
