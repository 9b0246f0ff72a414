"""Scratch memory that a group keeps between its operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

KEPT = 64 << 20  # bytes that a group holds on to at most
SMALL = 32 << 10  # bytes that the allocator hands out as fast


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
