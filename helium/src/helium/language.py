"""The words of a kernel that PyTorch does not have. The compiler reads them; as plain Python they raise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from helium.errors import OutsideKernel

__all__ = ["dot", "full", "grid", "load", "static_range", "store", "tile", "zeros"]


class Tile:
    """What a tile loop's variable is: the current block of an axis. As an index it selects that block, masked."""

    index: torch.Tensor
    """int64[block]: the indices of the block."""
    begin: int
    """The first index."""
    end: int
    """One past the last index: min(begin + block_size, the axis' end)."""
    block_size: int
    """The block size of the schedule; the last block may be shorter."""
    id: int
    """The number of the block."""


def tile(
    begin_or_end: int | Sequence[int],
    end: int | Sequence[int] | None = None,
    block_size: int | Sequence[int | None] | None = None,
) -> Iterator[Any]:
    """Loop over blocks of ``0 … end-1``, or of ``begin … end-1``; sequences give one tile per dimension.

    A top-level tile loop is the grid: its iterations run in parallel. A nested one runs in order and may carry values.
    A one-element sequence is the scalar form. `block_size` fixes block sizes (Triton rounds them up to powers of two);
    where it is None, the schedule chooses.
    """
    raise OutsideKernel("tile")


def grid(begin_or_end: int | Sequence[int], end: int | Sequence[int] | None = None) -> Iterator[Any]:
    """Loop over the single indices ``0 … end-1``, or ``begin … end-1``, as integers; parallel where `tile` would be."""
    raise OutsideKernel("grid")


def static_range(begin_or_end: int, end: int | None = None, step: int = 1) -> Iterator[int]:
    """A range of constants, unrolled while compiling."""
    raise OutsideKernel("static_range")


def zeros(shape: Sequence[Any], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tile of zeros; `shape` holds tiles, sizes and constants."""
    raise OutsideKernel("zeros")


def full(shape: Sequence[Any], value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tile of one value; `shape` holds tiles, sizes and constants."""
    raise OutsideKernel("full")


def dot(left: torch.Tensor, right: torch.Tensor, acc: torch.Tensor | None = None) -> torch.Tensor:
    """``left @ right (+ acc)`` with a float32 result (float64 of float64)."""
    raise OutsideKernel("dot")


def load(tensor: torch.Tensor, index: Sequence[Any], extra_mask: torch.Tensor | None = None) -> torch.Tensor:
    """``tensor[index]`` where `extra_mask` is true, and 0 where it is not."""
    raise OutsideKernel("load")


def store(
    tensor: torch.Tensor, index: Sequence[Any], value: torch.Tensor, extra_mask: torch.Tensor | None = None
) -> None:
    """``tensor[index] = value`` where `extra_mask` is true."""
    raise OutsideKernel("store")
