"""One optimizer step: divide, clip, step and clear, so that no caller can leave one of them out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from forge.config import OptimizerConfig

__all__ = ["Optimizer"]


class Optimizer:
    """AdamW (Loshchilov and Hutter, 2019) over a module's parameters, after clipping the gradient's global norm."""

    def __init__(self, module: nn.Module, config: OptimizerConfig) -> None:
        self.parameters = list(module.parameters())
        self.config = config
        self.steps = 0
        self.adam = torch.optim.AdamW(
            self.parameters, config.lr, config.betas, config.eps, config.weight_decay, fused=True
        )

    def step(self, denominator: float = 1.0) -> float:
        """Apply the gradients divided by `denominator`, clear them, and return the norm before clipping."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if denominator != 1.0:
            torch._foreach_div_(gradients, denominator)
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if self.config.max_norm and norm > self.config.max_norm:
            torch._foreach_mul_(gradients, self.config.max_norm / norm)
        self.steps += 1
        # Adam's first steps are as long as all others, in directions that one batch gives: too far, too early.
        self.adam.param_groups[0]["lr"] = self.config.lr * min(1.0, self.steps / max(1, self.config.warm_up_steps))
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Adam's moments, and how many steps there were."""
        return {"adam": self.adam.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.adam.load_state_dict(state["adam"])
        self.steps = state["steps"]
