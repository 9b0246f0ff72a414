"""Softmax over rows."""

import torch

import helium.language as hl
from helium.decorator import kernel


@kernel(name="helium::softmax_backward")
def softmax_backward(grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The gradient of softmax's argument: out · (grad - Σ grad·out)."""
    m, _ = out.size()
    result = torch.empty_like(out)
    for tile_m in hl.tile(m):
        g, y = grad[tile_m, :].to(torch.float32), out[tile_m, :].to(torch.float32)
        result[tile_m, :] = y * (g - (g * y).sum(-1, keepdim=True))
    return result


def _backward(
    grads: tuple[torch.Tensor, ...], args: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor]:
    return (softmax_backward(grads[0], outputs[0]),)


@kernel(name="helium::softmax", backward=_backward)
def softmax(x: torch.Tensor) -> torch.Tensor:
    """exp(x - max x) / Σ exp(x - max x) along the rows of x[m, n]; computed in float32 for halves."""
    m, _ = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        out[tile_m, :] = torch.softmax(x[tile_m, :], dim=-1)
    return out
