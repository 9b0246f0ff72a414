"""A decoder as one exportable decode step with a static key/value cache: what forge hands to executor."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from forge.models import Decoder

__all__ = ["DecodeStep", "decode_step"]


class DecodeStep(nn.Module):
    """One token in, the next token's logits out; the cache is state, kept in buffers and written in place.

    Buffers `k_cache_<layer>` and `v_cache_<layer>` are [1, kv_heads, max_seq_len, head_dim], zero at first. Positions
    count from 0 and are fed in order; going back to an earlier position simply overwrites what came after it. The
    parameters are the decoder's own, not copies.
    """

    def __init__(self, decoder: Decoder, max_seq_len: int) -> None:
        super().__init__()
        config = decoder.config
        if not 1 <= max_seq_len <= config.max_position_embeddings:
            raise ValueError(
                f"max_seq_len is {max_seq_len}; this decoder has positions for 1 to {config.max_position_embeddings}"
            )
        self.decoder = decoder
        self.scale = config.head_dim**-0.5
        cos, sin = decoder.rope(torch.arange(max_seq_len, device=decoder.head.device))
        self.register_buffer("cos", cos.squeeze(1), persistent=False)
        self.register_buffer("sin", sin.squeeze(1), persistent=False)
        for layer in range(config.num_layers):
            for kind in ("k_cache", "v_cache"):
                empty = decoder.head.new_zeros(1, config.num_kv_heads, max_seq_len, config.head_dim)
                self.register_buffer(f"{kind}_{layer}", empty.detach(), persistent=False)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        """Logits f32[1, V] after `token` int64[1, 1] at `position` int64[]."""
        at = position.view(1)
        cos, sin = (self.get_buffer(table).index_select(0, at).view(1, 1, 1, -1) for table in ("cos", "sin"))
        steps = torch.arange(self.get_buffer("cos").shape[0], device=token.device)
        bias = torch.where(steps <= position, 0.0, float("-inf"))

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            k_cache, v_cache = self.get_buffer(f"k_cache_{layer}"), self.get_buffer(f"v_cache_{layer}")
            k_cache.index_copy_(2, at, keys.transpose(1, 2))
            v_cache.index_copy_(2, at, values.transpose(1, 2))
            grouped = queries.view(k_cache.shape[1], -1, k_cache.shape[3])
            scores = torch.bmm(grouped, k_cache.squeeze(0).transpose(1, 2)) * self.scale + bias
            return torch.bmm(scores.softmax(-1), v_cache.squeeze(0)).view(1, 1, -1)

        return self.decoder.logits(self.decoder.decode(token, cos, sin, attend)[:, 0])


def decode_step(decoder: Decoder, max_seq_len: int) -> tuple[DecodeStep, tuple[Tensor, Tensor]]:
    """The step module and example arguments (token int64[1, 1], position int64[]) to export it with."""
    device = decoder.head.device
    example = (torch.zeros(1, 1, dtype=torch.int64, device=device), torch.zeros((), dtype=torch.int64, device=device))
    return DecodeStep(decoder, max_seq_len).eval(), example
