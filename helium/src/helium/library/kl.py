"""Kullback-Leibler divergence between the softmaxes of two sets of logits."""

import torch

import helium.language as hl
from helium.decorator import kernel


@kernel(name="helium::kl_backward")
def kl_backward(
    grad: torch.Tensor, logits: torch.Tensor, reference: torch.Tensor, result: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of logits, p · (log p - log q - KL), and of reference, q - p, each times grad."""
    m, _ = logits.size()
    grad_logits, grad_reference = torch.empty_like(logits), torch.empty_like(reference)
    for tile_m in hl.tile(m):
        log_p = torch.log_softmax(logits[tile_m, :].to(torch.float32), dim=-1)
        log_q = torch.log_softmax(reference[tile_m, :].to(torch.float32), dim=-1)
        p, g = torch.exp(log_p), grad[tile_m][:, None]
        grad_logits[tile_m, :] = g * p * (log_p - log_q - result[tile_m][:, None])
        grad_reference[tile_m, :] = g * (torch.exp(log_q) - p)
    return grad_logits, grad_reference


def _backward(
    grads: tuple[torch.Tensor, ...], args: tuple[torch.Tensor, torch.Tensor], outputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_logits, grad_reference = kl_backward(grads[0], *args, outputs[0])
    return grad_logits, grad_reference


def _meaning(logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    log_p = logits.to(torch.float32).log_softmax(-1)
    return (log_p.exp() * (log_p - reference.to(torch.float32).log_softmax(-1))).sum(-1)


@kernel(name="helium::kl", backward=_backward, meaning=_meaning)
def kl(logits: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """KL(softmax(logits) ‖ softmax(reference)) of each row of two [m, v], as float32[m]."""
    m, _ = logits.size()
    assert logits.shape == reference.shape
    out = torch.empty([m], dtype=torch.float32, device=logits.device)
    for tile_m in hl.tile(m):
        log_p = torch.log_softmax(logits[tile_m, :].to(torch.float32), dim=-1)
        log_q = torch.log_softmax(reference[tile_m, :].to(torch.float32), dim=-1)
        out[tile_m] = (torch.exp(log_p) * (log_p - log_q)).sum(-1)
    return out
