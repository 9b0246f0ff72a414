"""Embedding lookup."""

import torch

import helium.language as hl
from helium.decorator import kernel


def _backward(
    grads: tuple[torch.Tensor, ...], args: tuple[torch.Tensor, torch.Tensor], outputs: tuple[torch.Tensor, ...]
) -> tuple[None, torch.Tensor]:
    ids, weight = args
    # Rows chosen twice are summed, which tiles cannot do without atomics; torch's own scatter adds in order.
    total = torch.zeros(weight.shape, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device)
    return None, total.index_add_(0, ids.to(torch.int64), grads[0].to(total.dtype)).to(weight.dtype)


def _meaning(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight[ids.to(torch.int64)]


@kernel(name="helium::embedding", backward=_backward, meaning=_meaning)
def embedding(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """weight[ids] as [m, d], of integer ids[m] and weight[v, d].

    An id outside 0 … v-1 is the caller's mistake; its row is 0.
    """
    m = ids.size(0)
    _, d = weight.size()
    out = torch.empty([m, d], dtype=weight.dtype, device=weight.device)
    for tile_m, tile_d in hl.tile([m, d]):
        out[tile_m, tile_d] = weight[ids[tile_m], tile_d]
    return out
