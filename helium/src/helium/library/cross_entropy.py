"""Cross entropy of each row against a class, without writing the log-softmax."""

import torch

import helium.language as hl
from helium.decorator import kernel
from helium.library.log_prob import log_prob_backward


def _backward(
    grads: tuple[torch.Tensor, ...], args: tuple[torch.Tensor, torch.Tensor], outputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, None]:
    return log_prob_backward(-grads[0], *args, -outputs[0]), None  # the loss is the negated log-probability


def _meaning(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    wide = logits.to(torch.float32)
    return wide.logsumexp(-1) - wide.gather(-1, ids[:, None].to(torch.int64))[:, 0]


@kernel(name="helium::cross_entropy", backward=_backward, meaning=_meaning)
def cross_entropy(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """-log softmax(logits[m, v])[i, ids[i]] as float32[m], unreduced, in one pass over the logits.

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
        out[tile_m] = top + torch.log(total) - logits[tile_m, ids[tile_m]].to(torch.float32)
    return out
