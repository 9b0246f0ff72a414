"""The model's parameters for this host, measured over one of its backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchcomms.measuring import on_ranks
from torchcomms.sim.topology import Link, Topology

LENGTHS = (256 << 10, 1 << 20, 4 << 20)  # bytes at which time per byte is measured


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured (`pair`, `all`: of two ranks, and of all ranks of the host), and the model that follows."""

    backend: str
    pair: Mapping[str, float]
    all: Mapping[str, float]

    @property
    def link(self) -> Link:
        """Of a message alone: latency and time per byte. When all exchange: gap and time per byte of the channel."""
        post = self.post
        latency = max(1e-7, self.pair["one way"] - 2 * post)
        byte = min((self.pair[f"one way {nbytes}"] - self.pair["one way"]) / nbytes for nbytes in LENGTHS)
        ranks, pairs = int(self.all["ranks"]), self.all["ranks"] * (self.all["ranks"] - 1)
        shared = min(self.all[f"exchange {nbytes}"] / nbytes for nbytes in LENGTHS) / ranks
        gap = max(0.0, self.all["exchange"] - self.pair["exchange"]) / max(1, pairs - 2)
        return Link(latency, max(byte, 0.0), gap, shared)

    @property
    def post(self) -> float:
        """Seconds of a rank's own for each message."""
        return min(self.pair["burst"], self.pair["one way"] / 3)

    def topology(self, ranks: int) -> Topology:
        """This host with so many ranks."""
        link = self.link
        return Topology(1, ranks, link, link, post=self.post, copy=self.all["copy"], reduce=self.all["reduce"])


def calibrate(
    backend: str = "tcp", *, ranks: int = 4, repeats: int = 10, progress: Callable[[Any], None] = lambda _: None
) -> Calibration:
    """Start two ranks and then `ranks` on this host, measure messages, copies and reductions, and fit the model.

    Takes some seconds. Call it from the main thread. Raises `MeasurementFailed` if the ranks fail.
    """
    plan = {"backend": backend, "repeats": repeats}
    pair, all_ranks = (on_ranks("torchcomms.sim.probe", count, plan, progress) for count in (2, ranks))
    return Calibration(backend, pair, all_ranks)
