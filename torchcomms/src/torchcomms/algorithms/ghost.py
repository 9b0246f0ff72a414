"""Ghosts: tensors of a shape and a dtype without memory, so that a schedule can be run for its cost alone.

The algorithms touch memory only through the helpers of this package, and those charge a ghost's meter instead of
working. A meter belongs to one simulated rank.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Meter(Protocol):
    """Who pays for local work."""

    def copied(self, nbytes: int) -> None:
        """So many bytes were written from one place to another."""

    def reduced(self, nbytes: int) -> None:
        """So many bytes were folded into a partial result."""


class Ghost:
    """A flat, dense tensor that is not there; slicing clips as everywhere in Python."""

    __slots__ = ("_count", "dtype", "meter", "nbytes")

    def __init__(self, count: int, dtype: torch.dtype, meter: Meter) -> None:
        self._count, self.dtype, self.meter = count, dtype, meter
        self.nbytes = count * dtype.itemsize

    def numel(self) -> int:
        """The number of elements."""
        return self._count

    def __getitem__(self, part: slice) -> Ghost:
        low, high, _ = part.indices(self._count)
        return Ghost(max(0, high - low), self.dtype, self.meter)

    def like(self, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Ghost:
        """Another ghost of the same owner, flat."""
        return Ghost(math.prod(shape), dtype or self.dtype, self.meter)
