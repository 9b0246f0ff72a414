"""Matrix product."""

import torch

import helium.language as hl
from helium.decorator import kernel


def _meaning(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, y)


@kernel(name="helium::matmul", meaning=_meaning)
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x[m, k] @ y[k, n], accumulated in float32 (float64 of float64)."""
    m, k = x.size()
    rows, n = y.size()
    assert rows == k
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def _backward(
    grads: tuple[torch.Tensor, ...], args: tuple[torch.Tensor, torch.Tensor], outputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = args
    return matmul(grads[0], y.t()), matmul(x.t(), grads[0])


matmul.backward = _backward
