"""What is asked of the engine, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from forge.errors import RequestError

__all__ = ["Completion", "FinishReason", "Request", "SamplingParams"]

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one completion.

    `temperature` 0 is greedy. The support is cut to the `top_k` likeliest tokens (0: all), then to the fewest that
    hold `top_p` of what is left, then to those at least `min_p` times as likely as the likeliest. A completion ends
    after `max_tokens`, at a token that ends the model's completions (unless `ignore_eos`), at one of `stop_ids`, or
    when its text holds one of the strings `stop`; what ended it belongs to it. Equal seeds give equal draws, whatever
    else runs in the batch; `None` takes the next of the engine's own.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 128
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, fits, wanted in (
            ("temperature", 0.0 <= self.temperature < float("inf"), "0 (greedy) or a positive number"),
            ("top_p", 0.0 < self.top_p <= 1.0, "in (0, 1]"),
            ("top_k", self.top_k >= 0, "0 (all) or a positive number of tokens"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "in [0, 1]"),
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("stop", isinstance(self.stop, tuple) and all(self.stop), "a tuple of strings, none of them empty"),
        ):
            if not fits:
                raise RequestError(f"{name} is {getattr(self, name)!r}; it must be {wanted}")

    @property
    def truncates(self) -> bool:
        """Whether tokens can be cut from the support."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to complete once; equal prompts of one batch are computed once."""

    prompt_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampled completion; `token_ids`, `logprobs` and `versions` have one entry a token.

    `logprobs` are natural logarithms under softmax(logits / temperature) over the whole vocabulary (temperature 1 where
    greedy), which is what a trainer recomputes; `versions` are the policy versions whose weights made each token.
    """

    prompt_ids: tuple[int, ...]
    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: FinishReason
