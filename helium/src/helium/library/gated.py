"""Gated activations of transformers' feed-forward layers (Shazeer, 2020): SwiGLU and GEGLU, forward and backward."""

import math

import torch

import helium.language as hl
from helium.decorator import kernel

Pair = tuple[torch.Tensor, torch.Tensor]


@kernel(name="helium::swiglu_backward")
def swiglu_backward(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> Pair:
    """The gradients of gate and up."""
    wide = torch.float64 if gate.dtype == torch.float64 else torch.float32
    grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
    for tile in hl.tile(gate.size()):
        x, g = gate[tile].to(wide), grad[tile].to(wide)
        share = torch.sigmoid(x)
        grad_up[tile] = g * x * share
        grad_gate[tile] = g * up[tile].to(wide) * share * (1.0 + x * (1.0 - share))
    return grad_gate, grad_up


def _swiglu_backward(grads: tuple[torch.Tensor, ...], args: Pair, outputs: tuple[torch.Tensor, ...]) -> Pair:
    grad_gate, grad_up = swiglu_backward(grads[0], *args)
    return grad_gate, grad_up


def _swiglu_meaning(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    wide = torch.promote_types(gate.dtype, torch.float32)
    return (torch.nn.functional.silu(gate.to(wide)) * up.to(wide)).to(gate.dtype)


@kernel(name="helium::swiglu", backward=_swiglu_backward, meaning=_swiglu_meaning)
def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gate · sigmoid(gate) · up, of one shape [m, n]; computed in float32 for halves and rounded once."""
    assert gate.shape == up.shape
    wide = torch.float64 if gate.dtype == torch.float64 else torch.float32
    out = torch.empty_like(gate)
    for tile in hl.tile(out.size()):
        x = gate[tile].to(wide)
        out[tile] = x * torch.sigmoid(x) * up[tile].to(wide)
    return out


@kernel(name="helium::geglu_backward")
def geglu_backward(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> Pair:
    """The gradients of gate and up."""
    grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
    for tile in hl.tile(gate.size()):
        x, g = gate[tile].to(torch.float32), grad[tile].to(torch.float32)
        below = 0.5 * (1.0 + torch.erf(x * math.sqrt(0.5)))
        grad_up[tile] = g * x * below
        density = torch.exp(-0.5 * x * x) * (1.0 / math.sqrt(2.0 * math.pi))
        grad_gate[tile] = g * up[tile].to(torch.float32) * (below + x * density)
    return grad_gate, grad_up


def _geglu_backward(grads: tuple[torch.Tensor, ...], args: Pair, outputs: tuple[torch.Tensor, ...]) -> Pair:
    grad_gate, grad_up = geglu_backward(grads[0], *args)
    return grad_gate, grad_up


def _geglu_meaning(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return (torch.nn.functional.gelu(gate.to(torch.float32)) * up.to(torch.float32)).to(gate.dtype)


@kernel(name="helium::geglu", backward=_geglu_backward, meaning=_geglu_meaning)
def geglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) · up, of one shape [m, n], with the exact gelu (by erf); computed in float32 and rounded once."""
    assert gate.shape == up.shape
    out = torch.empty_like(gate)
    for tile in hl.tile(out.size()):
        x = gate[tile].to(torch.float32)
        out[tile] = 0.5 * x * (1.0 + torch.erf(x * math.sqrt(0.5))) * up[tile].to(torch.float32)
    return out
