"""A reward for completions that have one right string: partly right places earn a part of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PlacesReward"]


@dataclass(frozen=True, slots=True)
class PlacesReward:
    """`places` for the share of right characters if the length is right, and `exact` more for the right string."""

    places: float = 0.5
    exact: float = 0.5

    def parts(self, completion: str, answer: str) -> dict[str, float]:
        """What each part earns; their sum is the reward."""
        right = 0.0
        if answer and len(completion) == len(answer):
            right = sum(ours == theirs for ours, theirs in zip(completion, answer, strict=True)) / len(answer)
        return {"places": self.places * right, "exact": self.exact * (completion == answer)}

    def __call__(self, prompt: str, completion: str, answer: str) -> float:
        """The reward of one completion; `prompt` plays no part in it."""
        return sum(self.parts(completion, answer).values())
