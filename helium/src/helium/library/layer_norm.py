"""Layer normalisation (Ba, Kiros and Hinton, 2016), forward and backward."""

import torch

import helium.language as hl
from helium.decorator import kernel


@kernel(name="helium::layer_norm_backward")
def layer_norm_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each row, the gradient of x and the row's part of the gradient of weight, still to be summed over rows."""
    m, n = x.size()
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    grad_x = torch.empty_like(x)
    parts = torch.empty([m, n], dtype=wide, device=x.device)
    for tile_m in hl.tile(m):
        row, g = x[tile_m, :].to(wide), grad[tile_m, :].to(wide)
        centred = row - row.mean(-1, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
        normal = centred * scale
        parts[tile_m, :] = g * normal
        g = g * weight[:].to(wide)
        grad_x[tile_m, :] = scale * (g - g.mean(-1, keepdim=True) - normal * (g * normal).mean(-1, keepdim=True))
    return grad_x, parts


def _backward(
    grads: tuple[torch.Tensor, ...],
    args: tuple[torch.Tensor, torch.Tensor, torch.Tensor, float],
    outputs: tuple[torch.Tensor, ...],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
    x, weight, bias, eps = args
    grad_x, parts = layer_norm_backward(grads[0], x, weight, eps)
    return grad_x, parts.sum(0).to(weight.dtype), grads[0].sum(0, dtype=parts.dtype).to(bias.dtype), None


def _meaning(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    row = x.to(wide)
    centred = row - row.mean(-1, keepdim=True)
    scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
    return (centred * scale * weight.to(wide) + bias.to(wide)).to(x.dtype)


@kernel(name="helium::layer_norm", backward=_backward, meaning=_meaning)
def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """(x - mean x) / √(var x + eps) · weight + bias along the rows of x[m, n], with weight[n] and bias[n].

    Computed in float32 for halves; the variance is that of the centred row, so a mean far from zero loses no digits.
    """
    m, n = x.size()
    assert weight.size(0) == n
    assert bias.size(0) == n
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        row = x[tile_m, :].to(wide)
        centred = row - row.mean(-1, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
        out[tile_m, :] = centred * scale * weight[:].to(wide) + bias[:].to(wide)
    return out
