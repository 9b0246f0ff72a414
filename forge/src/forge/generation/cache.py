"""Keys and values of the rows in flight, in slots that rows keep for as long as they run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.models import Decoder
from forge.models.attention import causal
from forge.models.layers import Attend

__all__ = ["SlotCache"]


class SlotCache:
    """Tensors [layers, slots, kv_heads, length, head_dim] for keys and for values, written in place.

    Slots and length grow when more is asked for and never shrink. What lies behind a row's position is stale but
    finite, and masked.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._keys = self._empty(0, 0)
        self._values = self._empty(0, 0)

    @property
    def length(self) -> int:
        """Positions there is room for in each slot."""
        return self._keys.shape[3]

    def _empty(self, slots: int, length: int) -> Tensor:
        config = self._decoder.config
        return self._decoder.head.new_zeros(
            config.num_layers, slots, config.num_kv_heads, length, config.head_dim, requires_grad=False
        )

    def reserve(self, slots: int, length: int) -> None:
        """Make room for `slots` rows of `length` positions, keeping what is there."""
        _, old_slots, _, old_length, _ = self._keys.shape
        if slots <= old_slots and length <= old_length:
            return
        shape = max(slots, old_slots), max(-(-length // 64) * 64, old_length)
        keys, values = self._empty(*shape), self._empty(*shape)
        keys[:, :old_slots, :, :old_length] = self._keys
        values[:, :old_slots, :, :old_length] = self._values
        self._keys, self._values = keys, values

    def copy(self, source: int, target: int, length: int) -> None:
        """Give slot `target` the first `length` positions of slot `source`."""
        for tensor in (self._keys, self._values):
            tensor[:, target, :, :length] = tensor[:, source, :, :length]

    def prefill(self, token_ids: Tensor, slots: Sequence[int]) -> Attend:
        """Attention over whole prompts int64[N, L], padded on the right, that also fills the N `slots` from 0 on."""
        attend_all = causal(token_ids, None)
        rows, length = torch.as_tensor(slots, device=token_ids.device), token_ids.shape[1]

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._keys[layer, :, :, :length].index_copy_(0, rows, keys.transpose(1, 2))
            self._values[layer, :, :, :length].index_copy_(0, rows, values.transpose(1, 2))
            return attend_all(layer, queries, keys, values)

        return attend

    def step(self, positions: Tensor, longest: int) -> Attend:
        """Attention of one new token in each of the first slots, at `positions` int64[N], none above `longest`."""
        rows = torch.arange(len(positions), device=positions.device)
        used = longest + 1
        allowed = (torch.arange(used, device=positions.device) <= positions.unsqueeze(-1)).view(-1, 1, 1, used)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            batch, _, kv_heads, dim = keys.shape
            cached_keys, cached_values = self._keys[layer, :batch], self._values[layer, :batch]
            cached_keys[rows, :, positions] = keys.squeeze(1)
            cached_values[rows, :, positions] = values.squeeze(1)
            grouped = queries.reshape(batch, kv_heads, -1, dim)
            out = F.scaled_dot_product_attention(grouped, cached_keys[:, :, :used], cached_values[:, :, :used], allowed)
            return out.reshape(batch, 1, -1)

        return attend
