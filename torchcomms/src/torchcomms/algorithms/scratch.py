"""Scratch memory that a group keeps between its operations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcomms.algorithms.ghost import Ghost

if TYPE_CHECKING:
    from torchcomms.algorithms.messages import Group

KEPT = 64 << 20  # bytes that a group holds on to at most
SMALL = 32 << 10  # bytes that the allocator hands out as fast
LINE = 64  # bytes to which the pieces of a workspace are aligned


def take(kept: Tensor | None, shape: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Memory of `shape` and the dtype and device of `like`, out of `kept` (flat bytes) if it is large enough.

    Also returns what is to be kept from now on.
    """
    need = math.prod(shape) * like.element_size()
    if need <= SMALL:
        return torch.empty(shape, dtype=like.dtype, device=like.device), kept
    if kept is None or kept.device != like.device or kept.numel() < need:
        kept = torch.empty(need, dtype=torch.uint8, device=like.device)
    return kept[:need].view(like.dtype).view(shape), kept if kept.numel() <= KEPT else None


def workspace(group: Group, like: Tensor, *pieces: tuple[int, torch.dtype]) -> list[Tensor]:
    """One flat tensor for each (count, dtype), on the device of `like`, cut from one take of the group's scratch.

    A group has one piece of scratch for a schedule, so a schedule asks once.
    """
    if isinstance(like, Ghost):
        return [like.like(count, dtype) for count, dtype in pieces]
    sizes = [-(-count * dtype.itemsize // LINE) * LINE for count, dtype in pieces]
    memory = group.scratch((sum(sizes),), torch.empty(0, dtype=torch.uint8, device=like.device))
    cut, low = [], 0
    for size, (count, dtype) in zip(sizes, pieces, strict=True):
        cut.append(memory[low : low + count * dtype.itemsize].view(dtype))
        low += size
    return cut
