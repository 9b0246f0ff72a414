"""Rotary position embedding (Su et al., 2021), on halves as llama-family models have it."""

import torch

import helium.language as hl
from helium.decorator import kernel


def _backward(
    grads: tuple[torch.Tensor, ...],
    args: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    outputs: tuple[torch.Tensor, ...],
) -> tuple[torch.Tensor, None, None]:
    _, cos, sin = args
    return rope(grads[0], cos, -sin), None, None  # the inverse of a rotation turns the other way


def _meaning(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    low, high = x.to(wide).chunk(2, -1)
    c, s = cos.to(wide), sin.to(wide)
    return torch.cat([low * c - high * s, high * c + low * s], -1).to(x.dtype)


@kernel(name="helium::rope", backward=_backward, meaning=_meaning)
def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (x[m, i], x[m, h + i]) of x[m, 2h] by the angles whose cos[m, h] and sin[m, h] are given.

    Angles are constants: they get no gradient. Computed in float32 for halves.
    """
    m, d = x.size()
    _, h = cos.size()
    assert cos.shape == sin.shape
    assert d == 2 * h
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    out = torch.empty_like(x)
    for tile_m, tile_h in hl.tile([m, h]):
        low, high = x[tile_m, tile_h].to(wide), x[tile_m, tile_h.index + h].to(wide)
        c, s = cos[tile_m, tile_h].to(wide), sin[tile_m, tile_h].to(wide)
        out[tile_m, tile_h] = low * c - high * s
        out[tile_m, tile_h.index + h] = high * c + low * s
    return out
