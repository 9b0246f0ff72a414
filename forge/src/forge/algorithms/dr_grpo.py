"""Dr. GRPO: A = r − mean within a group, without the bias of dividing by std (Liu et al., 2025, arXiv:2503.20783)."""

from torch import Tensor

from forge.algorithms.groups import centre

__all__ = ["advantages"]


def advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """Advantages f32[N] of `rewards` f32[N] in `groups` i64[N]; a NaN reward is not scorable and gets 0."""
    return centre(rewards, groups).deviation.float()
