"""The layers of the decoder, in plain torch, with the parameter names that Hugging Face gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.models.config import DecoderConfig

__all__ = ["Attend", "Block", "Norm", "RmsNorm", "rotate"]

RmsNorm = Callable[[Tensor, Tensor, float], Tensor]
"""`(x[m, n], weight[n], eps) -> [m, n]`, for example a helium kernel."""


class Attend(Protocol):
    """How queries meet keys and values: over a whole batch, or over a cache that it also fills.

    Called once a layer, in order, with queries [B, T, H, D] and keys and values [B, T, K, D], already rotated;
    returns [B, T, H * D].
    """

    def __call__(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor: ...


def _lean() -> bool:
    """Whether to take the forms that are faster but have no gradient, and no place in an exported graph."""
    return not (torch.is_grad_enabled() or torch.compiler.is_compiling())


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Nothing: `Decoder.init` fills every parameter, without the global generator."""


class _Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Nothing: `Decoder.init` fills every parameter, without the global generator."""


class Norm(nn.Module):
    """Root-mean-square norm over the last dimension (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float, kernel: RmsNorm | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        if self.kernel is not None:
            return self.kernel(x.reshape(-1, x.shape[-1]), self.weight, self.eps).view(x.shape)
        if _lean() and x.is_cpu and x.dtype == torch.float32:
            return self._with_few_operations(x)
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)

    def _with_few_operations(self, x: Tensor) -> Tensor:
        """The same in half the operations that torch needs on CPU, where it has no fused one."""
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * length.square_().mul_(1.0 / x.shape[-1]).add_(self.eps).rsqrt_() * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al., 2021) in the half-split layout; `sin` has its first half negated.

    `x` [..., heads, D]; `cos` and `sin` broadcast against it.
    """
    low, high = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat((high, low), -1), sin)


class Attention(nn.Module):
    """Grouped-query attention; `packed` holds q, k and v as one matrix when an engine has packed the decoder."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = _Linear(config.hidden_size, queries, bias=config.qkv_bias)
        self.k_proj = _Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.v_proj = _Linear(config.hidden_size, keys, bias=config.qkv_bias)
        self.o_proj = _Linear(queries, config.hidden_size, bias=False)
        self.q_norm = Norm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = Norm(self.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.packed: tuple[Tensor, Tensor | None] | None = None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, layer: int, attend: Attend) -> Tensor:
        batch, length, _ = x.shape
        qkv = self._project(x).view(batch, length, -1, self.head_dim)
        mixed = self.heads + self.kv_heads
        query_keys = rotate(self._normed(qkv[:, :, :mixed]), cos, sin)
        queries, keys = query_keys[:, :, : self.heads], query_keys[:, :, self.heads :]
        return self.o_proj(attend(layer, queries, keys, qkv[:, :, mixed:]))  # type: ignore[no-any-return]

    def _project(self, x: Tensor) -> Tensor:
        if self.packed is not None and _lean():
            return F.linear(x, *self.packed)
        return torch.cat((self.q_proj(x), self.k_proj(x), self.v_proj(x)), -1)

    def _normed(self, query_keys: Tensor) -> Tensor:
        if self.q_norm is None or self.k_norm is None:
            return query_keys
        return torch.cat((self.q_norm(query_keys[:, :, : self.heads]), self.k_norm(query_keys[:, :, self.heads :])), 2)


class Mlp(nn.Module):
    """SwiGLU (Shazeer, 2020); `packed` holds gate and up as one matrix when an engine has packed the decoder."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = _Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = _Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = _Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.packed: tuple[Tensor, Tensor | None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None and _lean():
            gate, up = F.linear(x, *self.packed).chunk(2, -1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(F.silu(gate) * up)  # type: ignore[no-any-return]


class Block(nn.Module):
    """One decoder layer: attention and MLP, each behind a norm and added to the stream."""

    def __init__(self, config: DecoderConfig, kernel: RmsNorm | None) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps, kernel)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps, kernel)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, layer: int, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, layer, attend)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]
