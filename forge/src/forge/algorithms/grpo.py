"""GRPO: A = (r − mean) / (std + 1e-4) within a group (Shao et al., 2024, arXiv:2402.03300)."""

from torch import Tensor

from forge.algorithms.groups import centre

__all__ = ["EPSILON", "advantages"]

EPSILON = 1e-4


def advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """Advantages f32[N] of `rewards` f32[N] in `groups` i64[N]; a NaN reward is not scorable and gets 0."""
    centred = centre(rewards, groups)
    return (centred.deviation / (centred.std + EPSILON)).float()
