"""Ghosts: tensors of a shape and a dtype without memory, so that a schedule can be run for its cost alone.

The algorithms touch memory only through the helpers of this package, and those charge a ghost's meter instead of
working. A meter belongs to one simulated rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Meter(Protocol):
    """Who pays for local work."""

    def copied(self, nbytes: float) -> None:
        """So many bytes were written from one place to another."""

    def reduced(self, nbytes: float) -> None:
        """So many bytes were folded into a partial result."""


class Ghost:
    """A flat, dense tensor that is not there; slicing clips as everywhere in Python.

    Each element stands for `scale` real ones, so that a tensor can be cut evenly among any number of ranks: a fraction
    of an element is an idea only, like the ghost.
    """

    __slots__ = ("_count", "dtype", "meter", "nbytes", "scale")

    def __init__(self, count: int, dtype: torch.dtype, meter: Meter, scale: float = 1) -> None:
        self._count, self.dtype, self.meter, self.scale = count, dtype, meter, scale
        self.nbytes: float = count * dtype.itemsize * scale

    def numel(self) -> int:
        """The number of elements."""
        return self._count

    def __getitem__(self, part: slice) -> Ghost:
        low, high, _ = part.indices(self._count)
        return Ghost(max(0, high - low), self.dtype, self.meter, self.scale)

    def like(self, count: int, dtype: torch.dtype) -> Ghost:
        """Another ghost of the same owner and scale."""
        return Ghost(count, dtype, self.meter, self.scale)
