"""Softmax over rows."""

import torch

import helium.language as hl
from helium.decorator import kernel


@kernel(name="helium::softmax_backward")
def softmax_backward(grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The gradient of softmax's argument: out · (grad - Σ grad·out)."""
    m, _ = out.size()
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    result = torch.empty_like(out)
    for tile_m in hl.tile(m):
        g, y = grad[tile_m, :].to(wide), out[tile_m, :].to(wide)
        result[tile_m, :] = y * (g - (g * y).sum(-1, keepdim=True))
    return result


def _backward(
    grads: tuple[torch.Tensor, ...], args: tuple[torch.Tensor, ...], outputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor]:
    return (softmax_backward(grads[0], outputs[0]),)


def _meaning(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


@kernel(name="helium::softmax", backward=_backward, meaning=_meaning)
def softmax(x: torch.Tensor) -> torch.Tensor:
    """exp(x - max x) / Σ exp(x - max x) along the rows of x[m, n]; computed in float32 for halves."""
    m, _ = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        out[tile_m, :] = torch.softmax(x[tile_m, :], dim=-1)
    return out
