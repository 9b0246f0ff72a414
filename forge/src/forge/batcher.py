"""Samples to a padded batch of tensors; masks come from sources and lengths, never from token values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forge.samples import Sample, Source

__all__ = ["Batch", "pad"]


@dataclass(frozen=True, slots=True)
class Batch:
    """N samples padded on the right to T tokens; column t of all but `token_ids` is about token t + 1.

    So the shift between a token and its prediction is made here, once: position t predicts `token_ids[:, t + 1]`.
    """

    token_ids: Tensor  # int64[N, T]; padding is pad_id, which may be any token
    old_logprobs: Tensor  # f32[N, T - 1]; the generator's, 0 where not sampled by the policy
    mask: Tensor  # bool[N, T - 1]; sampled by the policy
    advantages: Tensor  # f32[N]
    versions: Tensor  # int64[N, T - 1]; -1 where not sampled by the policy

    def split(self, size: int) -> list[Batch]:
        """Micro-batches of at most `size` samples, views of this batch."""
        pieces = (self.token_ids, self.old_logprobs, self.mask, self.advantages, self.versions)
        return [Batch(*piece) for piece in zip(*(torch.split(tensor, size) for tensor in pieces), strict=True)]


def pad(samples: Sequence[Sample], advantages: Tensor, pad_id: int = 0) -> Batch:
    """A batch of `samples`, no wider than the longest of them, with one advantage (f32[N]) each."""
    width = max(len(sample.token_ids) for sample in samples)

    def rows(field: str, filler: float) -> list[list[float]]:
        values = (getattr(sample, field) for sample in samples)
        return [[*value, *([filler] * (width - len(value)))] for value in values]

    return Batch(
        torch.tensor(rows("token_ids", pad_id)),
        torch.tensor(rows("logprobs", 0.0))[:, 1:],
        torch.tensor(rows("sources", Source.PROMPT))[:, 1:] == Source.POLICY,
        advantages,
        torch.tensor(rows("versions", -1))[:, 1:],
    )
