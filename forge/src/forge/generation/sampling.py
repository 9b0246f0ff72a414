"""Sampling a batch of rows, each by its own temperature, cuts and uniform draw."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["cut", "invert", "sample"]


def sample(probs: Tensor, draws: Tensor, cuts: tuple[Tensor, Tensor, Tensor] | None) -> Tensor:
    """Token ids int64[B] drawn from `probs` [B, V] at the uniform `draws` [B] in [0, 1).

    One draw a row, so that what a row gets depends on nothing but its own probabilities and its own draw.
    `cuts` are top_k int64[B] (V: all), top_p and min_p [B], or None where no row cuts anything.
    """
    if cuts is None:
        return invert(probs, draws)
    likeliest, ids = torch.sort(probs, dim=-1, descending=True, stable=True)
    return ids.gather(-1, invert(cut(likeliest, *cuts), draws).unsqueeze(-1)).squeeze(-1)


def cut(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`probs` [B, V], sorted downwards, with 0 for what is cut; not renormalised. The likeliest token always stays."""
    rank = torch.arange(probs.shape[-1], device=probs.device)
    kept = torch.where(rank < top_k.unsqueeze(-1), probs, 0.0)
    before = kept.cumsum(-1) - kept
    inside = before < top_p.unsqueeze(-1) * kept.sum(-1, keepdim=True)
    likely = kept >= min_p.unsqueeze(-1) * kept[:, :1]
    return torch.where((inside & likely) | (rank == 0), kept, 0.0)


def invert(weights: Tensor, draws: Tensor) -> Tensor:
    """The inverse of the cumulative distribution of `weights` [B, V] (not normalised) at `draws` [B] in [0, 1).

    A draw below 1 scaled by the total stays below the total in floating point, so a token of weight 0 is never drawn.
    """
    mass = weights.cumsum(-1)
    return torch.searchsorted(mass, draws.unsqueeze(-1) * mass[:, -1:], right=True).squeeze(-1)
