"""Tensors in this rank's part of the segment, which every rank can map: taken here, given back when they are collected.

A tensor keeps the segment mapped, also after `close`.
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.providers.shm.native import Group

LINE = 64  # bytes: tensors do not share one
PAGE = 4096


class FreeList:
    """Which parts of `size` bytes are free: first fit, neighbours merged. No memory, only numbers."""

    def __init__(self, size: int) -> None:
        self._free = [(0, size)]  # (offset, bytes), by offset

    def take(self, size: int) -> int | None:
        """The offset of `size` bytes, or None if no free part is as long."""
        for index, (offset, room) in enumerate(self._free):
            if room >= size:
                self._free[index : index + 1] = [(offset + size, room - size)] if room > size else []
                return offset
        return None

    def give(self, offset: int, size: int) -> None:
        """Give back what was taken."""
        insort(self._free, (offset, size))
        index = self._free.index((offset, size))
        for first in (index, index - 1):
            if 0 <= first < len(self._free) - 1:
                (low, room), (high, more) = self._free[first : first + 2]
                if low + room == high:
                    self._free[first : first + 2] = [(low, room + more)]


class Heap:
    """The tensors of `Backend.empty`."""

    def __init__(self, group: Group, rank: int, size: int) -> None:
        self._group, self._base, self._size = group, group.heap(rank), size
        self._list, self._lock = FreeList(size), threading.Lock()
        # A collector may run anywhere, also while this thread holds the lock: it only notes what was collected.
        self._returned: deque[tuple[int, int]] = deque()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor in the heap; raises MemoryError if it is full."""
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return torch.empty(shape, dtype=dtype)
        room = -(-size // LINE) * LINE if size < PAGE else -(-size // PAGE) * PAGE
        with self._lock:
            while self._returned:
                self._list.give(*self._returned.popleft())
            offset = self._list.take(room)
        if offset is None:
            raise MemoryError(f"the heap of {self._size} bytes has no {size} free in one piece; drop tensors of it")
        memory = mapped(self._group, self._base + offset, size)
        note = weakref.finalize(memory, self._returned.append, (offset, room))
        note.atexit = False
        return tensor_of(memory, dtype).view(shape)

    def place(self, tensor: Tensor) -> int | None:
        """The offset of a tensor in this heap, or None."""
        offset = tensor.data_ptr() - self._base
        return offset if tensor.nbytes and 0 <= offset <= self._size - tensor.nbytes else None


def mapped(group: Group, address: int, size: int) -> Any:
    """Bytes of the segment as an object that keeps it mapped."""
    group.pin()
    memory = (ctypes.c_char * size).from_address(address)
    release = weakref.finalize(memory, group.unpin)
    release.atexit = False
    return memory


def tensor_of(memory: Any, dtype: torch.dtype) -> Tensor:
    """The bytes of `mapped` as a flat tensor, which keeps them."""
    return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)
