"""Attention over a whole batch: causal, with padding or packed sequences told apart by a mask."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.models.layers import Attend

__all__ = ["causal", "positions_of"]


def positions_of(token_ids: Tensor, mask: Tensor | None) -> Tensor:
    """Positions int64[B, T], counted from the first token of each run of equal `mask` values (or of the row)."""
    steps = torch.arange(token_ids.shape[1], device=token_ids.device).expand(token_ids.shape)
    if mask is None:
        return steps
    starts = torch.zeros_like(steps)
    starts[:, 1:] = torch.where(mask[:, 1:] != mask[:, :-1], steps[:, 1:], 0)
    return steps - starts.cummax(1).values


def causal(token_ids: Tensor, mask: Tensor | None) -> Attend:
    """Attention in which a token sees itself and the earlier tokens that have its own `mask` value."""
    allowed = None
    if mask is not None:
        length = token_ids.shape[1]
        lower = torch.ones(length, length, dtype=torch.bool, device=token_ids.device).tril()
        allowed = ((mask[:, :, None] == mask[:, None, :]) & lower).unsqueeze(1)

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        keys, values = _spread(keys, queries.shape[2]), _spread(values, queries.shape[2])
        out = F.scaled_dot_product_attention(
            queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), allowed, is_causal=allowed is None
        )
        return out.transpose(1, 2).flatten(2)

    return attend


def _spread(x: Tensor, heads: int) -> Tensor:
    """[B, T, K, D] → [B, T, heads, D]: each key/value head repeated for the query heads it serves."""
    batch, length, kv_heads, dim = x.shape
    if kv_heads == heads:
        return x
    return x.unsqueeze(3).expand(batch, length, kv_heads, heads // kv_heads, dim).flatten(2, 3)
