"""Several short samples in one row: the trainer computes hidden states of tokens, hardly any of padding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from forge.batcher import Batch

__all__ = ["Packed", "pack"]

WIDTH = 48
"""Rows are this wide, or as the longest sample; wider ones save little padding and cost more in masked attention."""


@dataclass(frozen=True, slots=True)
class Packed:
    """R rows of W tokens, in which every sample has its own segment number; 0 is padding."""

    token_ids: Tensor  # int64[R, W]
    segments: Tensor  # int64[R, W]; a token attends to earlier ones of its segment
    places: Tensor  # int64[N, T - 1]; where in the R · W places each of the batch's is; meaningless where masked out


def pack(batch: Batch) -> Packed:
    """Pack what a batch needs computed: each sample up to the place that predicts its last sampled token."""
    samples, length = batch.mask.shape
    steps = torch.arange(length, device=batch.mask.device)
    lengths = torch.where(batch.mask, steps + 1, 0).amax(1)
    width = max(WIDTH, int(lengths.max()))
    starts, rows = _first_fit(lengths.tolist(), width)
    places = torch.tensor(starts, device=batch.mask.device).unsqueeze(1) + steps
    needed = steps < lengths.unsqueeze(1)
    token_ids = batch.token_ids.new_zeros(rows * width)
    segments = torch.zeros_like(token_ids)
    token_ids[places[needed]] = batch.token_ids[:, :-1][needed]
    numbers = torch.arange(1, samples + 1, device=batch.mask.device).unsqueeze(1)
    segments[places[needed]] = numbers.expand(samples, length)[needed]
    return Packed(token_ids.view(rows, width), segments.view(rows, width), places)


def _first_fit(lengths: list[int], width: int) -> tuple[list[int], int]:
    """Where each sample starts, longest first into the first row with room; and how many rows that takes."""
    room: list[int] = []
    starts = [0] * len(lengths)
    for sample in sorted(range(len(lengths)), key=lambda sample: -lengths[sample]):
        row = next((row for row, free in enumerate(room) if free >= lengths[sample]), len(room))
        if row == len(room):
            room.append(width)
        starts[sample] = row * width + width - room[row]
        room[row] -= lengths[sample]
    return starts, len(room)
