"""What is measured, and what comes out of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self

import torch

from torchcomms.errors import InvalidCall

# Bus bandwidth over algorithm bandwidth, for n ranks, as nccl-tests define it: comparable with the speed of the link.
_RING = {
    "all_gather": 1.0,
    "all_reduce": 2.0,
    "all_to_all": 1.0,
    "reduce_scatter": 1.0,
}
OPERATIONS = ("all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "reduce", "reduce_scatter")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
FACTOR = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """One operation over several sizes, on `ranks` ranks of each machine.

    `sizes` are bytes of the longest tensor that a rank passes.
    """

    operation: str
    sizes: tuple[int, ...]
    ranks: int
    backend: str = "auto"
    dtype: str = "float32"
    device: str = "cpu"
    peer: str = ""
    seconds: float = 0.3

    @classmethod
    def read(
        cls,
        operation: str,
        sizes: str,
        ranks: int,
        *,
        backend: str = "auto",
        dtype: str = "float32",
        device: str = "cpu",
        peer: str = "",
        seconds: float = 0.3,
    ) -> Self:
        """A plan from words of the command line; raises `InvalidCall` for one that makes no sense."""
        if operation not in OPERATIONS:
            raise InvalidCall(f"no operation {operation!r} can be measured; there are {', '.join(OPERATIONS)}")
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise InvalidCall(f"{dtype!r} is no dtype of torch; write for example float32, bfloat16 or int64")
        return cls(operation, read_sizes(sizes), ranks, backend, dtype, device, peer, seconds)

    def dump(self) -> str:
        """As JSON, for the ranks."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Self:
        """From `dump`."""
        fields = json.loads(text)
        return cls(**{**fields, "sizes": tuple(fields["sizes"])})

    def bus_factor(self, ranks: int) -> float:
        """What algorithm bandwidth is multiplied by to get bus bandwidth, for that many ranks in all."""
        ring = _RING.get(self.operation)
        return 1.0 if ring is None else ring * (ranks - 1) / ranks

    def rows(self) -> int:
        """How many rows come out."""
        return len(self.sizes) if self.operation != "barrier" else 1


@dataclass(frozen=True, slots=True)
class Row:
    """One size: microseconds of the slowest of all ranks by subject (the backend, then the peer), and who was wrong."""

    ranks: int
    bytes: int
    calls: int
    times: Mapping[str, Mapping[str, float]]
    wrong: tuple[str, ...]

    @classmethod
    def load(cls, text: str) -> Self:
        """From JSON."""
        fields = json.loads(text)
        return cls(fields["ranks"], fields["bytes"], fields["calls"], fields["times"], tuple(fields["wrong"]))

    def bandwidth(self, subject: str) -> float:
        """Bytes over median time, in GB/s: algbw."""
        return self.bytes / self.times[subject]["median"] / 1e3


def read_sizes(text: str) -> tuple[int, ...]:
    """Bytes from "8:64M" (doubling), "8:64M:4" (by four) or "8,4K,1M"."""
    if ":" not in text:
        return tuple(_bytes(one) for one in text.split(","))
    low, high, *factor = text.split(":")
    size, last, by = _bytes(low), _bytes(high), int(factor[0]) if factor and factor[0].isdecimal() else FACTOR
    if not 0 < size <= last or by < 2 or len(factor) > 1:
        raise InvalidCall(f"sizes {text!r} are no range; write FROM:TO or FROM:TO:FACTOR, as in 8:64M:4")
    found = []
    while size <= last:
        found.append(size)
        size *= by
    return tuple(found)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise InvalidCall(f"{text!r} is no size; write bytes, or a number and K, M or G, as in 256K")
    return int(match[1]) * UNITS[match[2].upper()]
