"""Rewards: callables `(prompt, completion, answer) -> float | None`; None means that it cannot be scored."""

from forge.rewards.mathematics import MathReward
from forge.rewards.order import PlacesReward

__all__ = ["MathReward", "PlacesReward"]
