"""RLOO: A = r − mean of the others = (r − mean) · n / (n − 1) (Ahmadian et al., 2024, arXiv:2402.14740)."""

from torch import Tensor

from forge.algorithms.groups import centre

__all__ = ["advantages"]


def advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """Advantages f32[N] of `rewards` f32[N] in `groups` i64[N]; a NaN reward is not scorable and gets 0."""
    centred = centre(rewards, groups)
    return (centred.deviation * centred.count / (centred.count - 1).clamp(min=1)).float()
