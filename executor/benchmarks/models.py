"""The models of the benchmarks, with random weights: a multilayer perceptron and decoders of the Llama family."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Module):
    """784 → 512 → 512 → 10 with ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 784] to [n, 10]."""
        return self.layers(x)


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of a decoder; `tied` shares the embedding with the head."""

    width: int = 512
    layers: int = 8
    heads: int = 8
    kv_heads: int = 8
    hidden: int = 1408
    vocab: int = 8000
    context: int = 256
    tied: bool = False

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


SMOLLM2_135M = Config(width=576, layers=30, heads=9, kv_heads=3, hidden=1536, vocab=49152, context=512, tied=True)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of [1, heads, 1, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Layer(nn.Module):
    """Attention over a static key/value cache, then SwiGLU, each behind an RMS norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width, kv_width = config.width, config.kv_heads * config.head_dim
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.query, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, kv_width, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, config.hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(config.hidden, width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, config.kv_heads, config.context, config.head_dim))

    def forward(self, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """[1, 1, width] to the same, with the cache written at `position`."""
        config = self.config
        y = self.norms[0](x)
        query = self.query(y).view(1, 1, config.heads, config.head_dim).transpose(1, 2)
        key, value = (p(y).view(1, 1, config.kv_heads, config.head_dim).transpose(1, 2) for p in (self.key, self.value))
        self.keys.index_copy_(2, position, rotate(key, cos, sin))
        self.values.index_copy_(2, position, value)
        attended = F.scaled_dot_product_attention(
            rotate(query, cos, sin), self.keys, self.values, attn_mask=mask, enable_gqa=config.heads != config.kv_heads
        )
        x = x + self.out(attended.transpose(1, 2).reshape(1, 1, -1))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """One decode step with the cache in buffers that it writes."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight
        frequencies = 10000.0 ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
        angles = torch.outer(torch.arange(config.context).float(), frequencies)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("steps", torch.arange(config.context))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        """Logits [1, 1, vocab] after `token` int64[1, 1] at `position` int64[1]."""
        x = self.embedding(token)
        cos, sin = self.cos[position], self.sin[position]
        mask = torch.where(self.steps <= position, 0.0, float("-inf")).view(1, 1, 1, -1)
        for layer in self.layers:
            x = layer(x, position, cos, sin, mask)
        return self.head(self.norm(x))


def decoder(config: Config) -> tuple[Decoder, tuple[Tensor, Tensor]]:
    """A decoder and example arguments."""
    torch.manual_seed(0)
    return Decoder(config).eval(), (torch.tensor([[5]]), torch.tensor([config.context // 8]))
