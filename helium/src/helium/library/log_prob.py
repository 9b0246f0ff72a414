"""The log-probability of chosen classes, without writing the log-softmax."""

import torch

import helium.language as hl
from helium.decorator import kernel


@kernel(name="helium::log_prob_backward")
def log_prob_backward(
    grad: torch.Tensor, logits: torch.Tensor, ids: torch.Tensor, result: torch.Tensor
) -> torch.Tensor:
    """grad · (one-hot of ids - softmax of logits), each softmax from the log-probability kept of the forward pass."""
    m, v = logits.size()
    out = torch.empty_like(logits)
    for tile_m in hl.tile(m):
        chosen = logits[tile_m, ids[tile_m]].to(torch.float32)
        total = chosen - result[tile_m]
        for tile_v in hl.tile(v):
            share = torch.exp(logits[tile_m, tile_v].to(torch.float32) - total[:, None])
            hit = torch.where(tile_v.index[None, :] == ids[tile_m][:, None], 1.0, 0.0)
            out[tile_m, tile_v] = grad[tile_m][:, None] * (hit - share)
    return out


def _backward(
    grads: tuple[torch.Tensor, ...], args: tuple[torch.Tensor, torch.Tensor], outputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, None]:
    return log_prob_backward(grads[0], *args, outputs[0]), None


def _meaning(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.float32).log_softmax(-1).gather(-1, ids[:, None].to(torch.int64))[:, 0]


@kernel(name="helium::log_prob", backward=_backward, meaning=_meaning)
def log_prob(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """log softmax(logits[m, v])[i, ids[i]] as float32[m], in one pass over the logits (Milakov and Gimelshein, 2018).

    An id outside 0 … v-1 is the caller's mistake; its logit counts as 0.
    """
    m, v = logits.size()
    assert ids.size(0) == m
    out = torch.empty([m], dtype=torch.float32, device=logits.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"))
        total = hl.zeros([tile_m])
        for tile_v in hl.tile(v):
            block = logits[tile_m, tile_v].to(torch.float32)
            new = torch.maximum(top, block.amax(-1))
            total = total * torch.exp(top - new) + torch.exp(block - new[:, None]).sum(-1)
            top = new
        out[tile_m] = logits[tile_m, ids[tile_m]].to(torch.float32) - top - torch.log(total)
    return out
