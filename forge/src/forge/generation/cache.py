"""Keys and values of the rows in flight, aligned so that every row's newest token lies in the same column."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forge.models import Decoder
from forge.models.attention import causal
from forge.models.layers import Attend

__all__ = ["SlotCache"]


class SlotCache:
    """Tensors [layers, slots, kv_heads, columns, head_dim] for keys and for values, written in place.

    Keys are rotated before they are stored, so a token may lie in any column. Rows are aligned at their ends: a step
    writes one column for all of them, and attends from the first column of the longest. When columns run out, the
    occupied ones move to the front, or their number doubles. What lies before a row's first column is stale but
    finite, and masked. The rows in use are always the first slots.
    """

    def __init__(self, decoder: Decoder, max_slots: int) -> None:
        config = decoder.config
        self._max_slots = max_slots
        self._scale = config.head_dim**-0.5
        self._keys = decoder.head.detach().new_zeros(config.num_layers, 0, config.num_kv_heads, 0, config.head_dim)
        self._values = self._keys
        self._next = 0  # the column that the next step writes
        self._firsts: list[int] = []  # of each slot in use, the column of its first token
        self._bias: Tensor | None = None  # [slots * kv_heads, 1, columns]: 0, or -inf before a row's first column

    @property
    def device(self) -> torch.device:
        """Where the keys and values are."""
        return self._keys.device

    def open(self, lengths: Sequence[int]) -> None:
        """Take the next slots into use, with room for `lengths` tokens of each before the next column."""
        slots, longest = len(self._firsts) + len(lengths), max(lengths)
        if slots > self._keys.shape[1] or longest > self._next:
            self._align(slots, max(self._window, longest))
        self._firsts += [self._next - length for length in lengths]
        self._bias = None

    def close(self, slot: int) -> None:
        """Give up a slot; the last slot in use moves into it."""
        first = self._firsts.pop()
        if slot < len(self._firsts):
            for tensor in (self._keys, self._values):
                columns = tensor[:, :, :, first : self._next]
                columns[:, slot] = columns[:, len(self._firsts)]
            self._firsts[slot] = first
        self._bias = None

    def prefill(self, token_ids: Tensor, mask: Tensor | None, slot: int) -> Attend:
        """Attention over whole prompts int64[N, L], padded on the left, that also fills the N slots from `slot` on."""
        attend_all = causal(token_ids, mask)
        slots, columns = slice(slot, slot + token_ids.shape[0]), slice(self._next - token_ids.shape[1], self._next)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._keys[layer, slots, :, columns] = keys.transpose(1, 2)
            self._values[layer, slots, :, columns] = values.transpose(1, 2)
            return attend_all(layer, queries, keys, values)

        return attend

    def repeat(self, sources: Sequence[int], slot: int) -> None:
        """Fill the slots from `slot` on with what `sources`, just prefilled, hold."""
        index = torch.tensor(sources, device=self.device)
        for tensor in (self._keys, self._values):
            columns = tensor[:, :, :, min(self._firsts[slot:]) : self._next]
            columns[:, slot : slot + len(sources)] = columns.index_select(1, index)

    def step(self) -> Attend:
        """Attention of one new token in each row in use: queries, keys and values are [N, 1, heads, head_dim]."""
        if self._next == self._keys.shape[3]:
            self._align(len(self._firsts), self._window)
        column, first, rows = self._next, min(self._firsts), len(self._firsts)
        self._next += 1
        bias = self._biases()[:, :, first : self._next]

        # Views for all layers at once, as making one costs about what computing with it does.
        written = [tensor[:, :rows, :, column].unbind() for tensor in (self._keys, self._values)]
        seen_keys = self._keys[:, :rows].flatten(1, 2)[:, :, first : column + 1].transpose(2, 3).unbind()
        seen_values = self._values[:, :rows].flatten(1, 2)[:, :, first : column + 1].unbind()

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            written[0][layer].copy_(keys.squeeze(1))
            written[1][layer].copy_(values.squeeze(1))
            grouped = queries.reshape(len(bias), -1, queries.shape[-1])
            scores = torch.baddbmm(bias, grouped, seen_keys[layer], alpha=self._scale)
            return torch.bmm(scores.softmax(-1), seen_values[layer]).view(rows, 1, -1)

        return attend

    @property
    def _window(self) -> int:
        """The number of columns that the rows in use occupy."""
        return self._next - min(self._firsts, default=self._next)

    def _align(self, slots: int, window: int) -> None:
        """Put the end of the rows at column `window`, with at least as many columns free behind it."""
        old_slots, old_columns = self._keys.shape[1], self._keys.shape[3]
        columns = max(old_columns, 64)
        while columns < 2 * window:
            columns *= 2
        if slots > old_slots:
            slots = min(max(slots, 2 * old_slots), self._max_slots)
        occupied, shift = slice(self._next - self._window, self._next), window - self._next
        self._keys, self._values = (
            _moved(tensor, occupied, shift, max(slots, old_slots), columns) for tensor in (self._keys, self._values)
        )
        self._firsts = [first + shift for first in self._firsts]
        self._next = window
        self._bias = None

    def _biases(self) -> Tensor:
        if self._bias is None:
            columns = torch.arange(self._keys.shape[3], device=self.device)
            hidden = columns < torch.tensor(self._firsts, device=self.device).unsqueeze(-1)
            bias = torch.zeros(hidden.shape, dtype=self._keys.dtype, device=self.device).masked_fill(hidden, -torch.inf)
            self._bias = bias.repeat_interleave(self._keys.shape[2], 0).unsqueeze(1)
        return self._bias


def _moved(tensor: Tensor, occupied: slice, shift: int, slots: int, columns: int) -> Tensor:
    """A tensor of `slots` and `columns` (the same one if it has them) with the occupied columns shifted."""
    content = tensor[:, :, :, occupied]
    if tensor.shape[1] < slots or tensor.shape[3] < columns:
        layers, _, heads, _, dim = tensor.shape
        target = tensor.new_zeros(layers, slots, heads, columns, dim)
    else:
        target, content = tensor, content.clone()
    target[:, : tensor.shape[1], :, occupied.start + shift : occupied.stop + shift] = content
    return target
