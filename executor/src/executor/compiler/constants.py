"""Constants and state: the module's tensors, each once however many names and methods it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from executor.compiler.dtypes import name_of

Key = tuple[object, ...]


def key_of(tensor: Tensor) -> Key:
    """Equal for tensors that are the same memory in the same form."""
    place = tensor.data_ptr() if tensor.numel() else id(tensor)
    return (place, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


@dataclass(slots=True)
class Held:
    """A tensor of the module, under the first name that it was met by."""

    name: str
    dtype: str
    tensor: Tensor


@dataclass(slots=True)
class Pool:
    """Tensors by their memory. They are held, so that no other can come to lie at the same place."""

    held: list[Held] = field(default_factory=list)
    _numbers: dict[Key, int] = field(default_factory=dict)

    def add(self, name: str, tensor: Tensor) -> int:
        """The number of a tensor; a new one gets `name`, or one like it if that is taken."""
        key = key_of(tensor)
        if key not in self._numbers:
            taken = {held.name for held in self.held}
            names = (name, *(f"{name}.{count}" for count in range(1, len(taken) + 1)))
            unique = next(free for free in names if free not in taken)
            self.held.append(Held(unique, name_of(tensor.dtype, f"tensor {name}"), tensor.detach()))
            self._numbers[key] = len(self.held) - 1
        return self._numbers[key]

    def number(self, tensor: Tensor) -> int | None:
        """The number of a tensor that is in it; None for others."""
        return self._numbers.get(key_of(tensor))


@dataclass(slots=True)
class Constants(Pool):
    """Tensors that nothing writes."""

    _transposed: dict[int, int] = field(default_factory=dict)

    def transposed(self, number: int) -> int:
        """The number of the transpose of a constant matrix, made at the first call."""
        if number not in self._transposed:
            source = self.held[number]
            self._transposed[number] = self.add(f"{source.name}.t", source.tensor.t().contiguous())
        return self._transposed[number]


def data_of(tensor: Tensor) -> memoryview:
    """The dense row-major bytes of a tensor, without a copy where it lies like that."""
    dense = tensor.detach().cpu().contiguous()
    raw = dense.view(torch.uint8) if dense.dim() else dense.reshape(1).view(torch.uint8)
    return memoryview(cast(Any, raw.numpy())).cast("B")
