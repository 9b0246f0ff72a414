"""Group statistics that every group-relative algorithm starts from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Centred", "centre"]


@dataclass(frozen=True, slots=True)
class Centred:
    """Per sample, in float64: the reward minus its group's mean, and the group's statistics."""

    deviation: Tensor  # f64[N]; exactly 0 where not scorable, alone, or where all of a group are equal
    std: Tensor  # f64[N]; sample standard deviation (n - 1); 0 where a group has one scorable sample
    count: Tensor  # f64[N]; scorable samples of the group


def centre(rewards: Tensor, groups: Tensor) -> Centred:
    """Deviations of `rewards` f32[N] within `groups` i64[N]; NaN is not scorable and enters no statistic."""
    if rewards.ndim != 1 or rewards.shape != groups.shape:
        raise ValueError(
            f"rewards {tuple(rewards.shape)} and groups {tuple(groups.shape)} must be equally long vectors"
        )
    scorable = ~rewards.isnan()
    value = torch.where(scorable, rewards, 0.0).double()
    _, inverse = groups.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    count = _total(scorable.double(), inverse)
    mean = _total(value, inverse) / count.clamp(min=1)
    varied = _extreme(value, scorable, inverse, "amax") != _extreme(value, scorable, inverse, "amin")
    deviation = torch.where(scorable & varied, value - mean, 0.0)
    std = (_total(deviation.square(), inverse) / (count - 1).clamp(min=1)).sqrt()
    return Centred(deviation, std, count)


def _total(value: Tensor, inverse: Tensor) -> Tensor:
    """Sum of each sample's group, f64[N]."""
    return value.new_zeros(value.shape).index_add_(0, inverse, value)[inverse]


def _extreme(value: Tensor, scorable: Tensor, inverse: Tensor, which: str) -> Tensor:
    """Largest or smallest scorable value of each sample's group: sums of equal rewards round, comparisons do not."""
    neutral = float("-inf") if which == "amax" else float("inf")
    filled = torch.where(scorable, value, neutral)
    return filled.new_full(value.shape, neutral).scatter_reduce_(0, inverse, filled, which)[inverse]
