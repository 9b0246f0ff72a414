"""The rows in flight: what each has sampled so far, and the per-row tensors that a step works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from forge.generation.request import Completion, FinishReason, SamplingParams

__all__ = ["Row", "RowTensors"]


@dataclass(slots=True)
class Row:
    """One request on its way: where it came from, what ends it, and what it has so far."""

    number: int
    prompt: tuple[int, ...]
    params: SamplingParams
    draws: list[float]  # one uniform number in [0, 1) for each token it may get
    stop_ids: frozenset[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Where the next token to be fed goes; that is the prompt's last at first."""
        return len(self.prompt) + len(self.token_ids) - 1

    def append(self, token: int, logprob: float, version: int) -> bool:
        """Take a sampled token; whether it, or the limit, ends the row (stop strings are the engine's to check)."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        return token in self.stop_ids or len(self.token_ids) == len(self.draws)

    def completion(self, reason: FinishReason) -> Completion:
        """What the row has become."""
        return Completion(self.prompt, self.token_ids, self.logprobs, self.versions, reason)


class RowTensors:
    """Per-row numbers of a fixed set of rows, one tensor each: rebuilt when rows come or go, advanced otherwise."""

    def __init__(self, rows: Sequence[Row], device: torch.device, vocab_size: int) -> None:
        def floats(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        params = [row.params for row in rows]
        self.tokens = torch.tensor([(row.token_ids or row.prompt)[-1] for row in rows], device=device)
        self.positions = torch.tensor([row.position for row in rows], device=device)
        self.longest = max(row.position for row in rows)
        self.greedy = torch.tensor([p.temperature == 0.0 for p in params], device=device)
        self.any_greedy = any(p.temperature == 0.0 for p in params)
        self.all_greedy = all(p.temperature == 0.0 for p in params)
        scaled = any(p.temperature not in (0.0, 1.0) for p in params)
        self.temperature = floats([p.temperature or 1.0 for p in params]) if scaled else 1.0
        self.cuts = None
        if any(p.truncates and p.temperature for p in params):
            top_k = torch.tensor([p.top_k or vocab_size for p in params], device=device)
            self.cuts = (top_k, floats([p.top_p for p in params]), floats([p.min_p for p in params]))

    def advance(self, tokens: Tensor) -> None:
        """The sampled tokens become the next to be fed."""
        self.tokens = tokens
        self.positions = self.positions + 1
        self.longest += 1
