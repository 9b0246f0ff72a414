"""The per-token policy loss, its importance corrections and aggregations, and estimates of the KL divergence."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = ["PolicyLoss", "kl_estimate", "policy_loss"]


class PolicyLoss(NamedTuple):
    """The loss, and what it was made of.

    `loss = numerator / denominator`, or 0 where nothing was kept. Micro-batches of one batch give its gradient when
    their numerators are summed and the sum is divided by the summed denominators.
    """

    loss: Tensor  # f32[]
    numerator: Tensor  # f32[], with the graph
    denominator: Tensor  # f32[], constant: tokens, sequences, or tokens of a fixed length
    ratio: Tensor  # f32[B, T], detached; 1 where masked
    kept: Tensor  # bool[B, T]: the mask less what importance="mask" left out
    clip_share: Tensor  # f32[]: share of the kept tokens whose clip binds, so that they have no gradient


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip: tuple[float, float] | None = (0.2, 0.2),
    aggregate: Literal["token", "sequence"] | int = "token",
    ratio: Literal["token", "sequence"] = "token",
    importance: Literal["truncate", "mask"] | None = None,
    bounds: tuple[float, float] = (0.5, 2.0),
) -> PolicyLoss:
    """Policy-gradient loss of f32[B, T] log-probabilities; `advantages` is f32[B] or f32[B, T], `mask` bool[B, T].

    With r = exp(logprobs − old_logprobs): `clip` (low, high) gives −min(r·A, clamp(r, 1−low, 1+high)·A) (Schulman et
    al., 2017, arXiv:1707.06347), `clip=None` −r·A. `importance="truncate"` gives −min(r, bounds[1])·A·logprobs with
    the weight held constant; "mask" drops tokens whose r is outside `bounds` from numerator and denominator.
    `ratio="sequence"` takes the geometric mean of r over a sequence (GSPO, Zheng et al., 2025, arXiv:2507.18071).
    `aggregate`: "token" divides by the kept tokens; "sequence" takes the mean over sequences with kept tokens of
    their means; an int L divides by B·L. What is masked may hold NaN. Nothing kept: the loss is 0.
    """
    mask = mask.bool()
    logprobs = torch.where(mask, logprobs, 0.0)
    difference = logprobs - torch.where(mask, old_logprobs, 0.0)
    if ratio == "sequence":
        difference = _sequence_mean(difference, mask)
    r = torch.where(mask, difference, 0.0).exp()
    advantage = advantages.unsqueeze(-1) if advantages.ndim == 1 else advantages
    advantage = torch.where(mask, advantage.expand(mask.shape), 0.0)
    kept = mask & (r.detach() >= bounds[0]) & (r.detach() <= bounds[1]) if importance == "mask" else mask
    per_token, bound = _surrogate(r, logprobs, advantage, clip, bounds, truncate=importance == "truncate")
    numerator, denominator = _aggregate(torch.where(kept, per_token, 0.0), kept, aggregate)
    loss = numerator / denominator.clamp(min=1)
    clip_share = (bound & kept).sum() / kept.sum().clamp(min=1)
    return PolicyLoss(loss, numerator, denominator, r.detach(), kept, clip_share)


def _surrogate(
    r: Tensor,
    logprobs: Tensor,
    advantage: Tensor,
    clip: tuple[float, float] | None,
    bounds: tuple[float, float],
    *,
    truncate: bool,
) -> tuple[Tensor, Tensor]:
    """The loss of each token and whether its clip binds."""
    if truncate:
        return -r.detach().clamp(max=bounds[1]) * advantage * logprobs, torch.zeros_like(r, dtype=torch.bool)
    if clip is None:
        return -r * advantage, torch.zeros_like(r, dtype=torch.bool)
    low, high = 1 - clip[0], 1 + clip[1]
    bound = ((r > high) & (advantage > 0)) | ((r < low) & (advantage < 0))
    return -torch.minimum(r * advantage, r.clamp(low, high) * advantage), bound.detach()


def _aggregate(per_token: Tensor, kept: Tensor, aggregate: Literal["token", "sequence"] | int) -> tuple[Tensor, Tensor]:
    if aggregate == "token":
        return per_token.sum(), kept.sum().float()
    if aggregate == "sequence":
        tokens = kept.sum(-1)
        return (per_token.sum(-1) / tokens.clamp(min=1)).sum(), (tokens > 0).sum().float()
    if isinstance(aggregate, int) and aggregate > 0:
        return per_token.sum(), per_token.new_tensor(float(kept.shape[0] * aggregate))
    raise ValueError(f'aggregate is {aggregate!r}; it must be "token", "sequence" or a positive length')


def _sequence_mean(difference: Tensor, mask: Tensor) -> Tensor:
    """The mean of each sequence's masked-in log ratios, at every position of it."""
    total = torch.where(mask, difference, 0.0).sum(-1, keepdim=True)
    return (total / mask.sum(-1, keepdim=True).clamp(min=1)).expand(difference.shape)


def kl_estimate(
    logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor | None = None, kind: Literal["k1", "k2", "k3"] = "k3"
) -> Tensor:
    """Estimates f32[B, T] of KL(policy ‖ reference) from tokens that the policy sampled; 0 where masked.

    With d = logprobs − ref_logprobs: k1 = d, k2 = d²/2, k3 = exp(−d) − 1 + d, which is unbiased and never negative
    (Schulman, "Approximating KL divergence", 2020). What is masked may hold NaN.
    """
    difference = logprobs - ref_logprobs
    if mask is not None:
        difference = torch.where(mask.bool(), difference, 0.0)
    if kind == "k1":
        return difference
    if kind == "k2":
        return difference.square() / 2
    if kind == "k3":
        return torch.expm1(-difference) + difference
    raise ValueError(f'kind is {kind!r}; it must be "k1", "k2" or "k3"')
