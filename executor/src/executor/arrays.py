"""numpy arrays as the runtime needs them: dtypes by name, aligned memory, addresses, tensors of any library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from executor.errors import InputError
from executor.manifest import ALIGNMENT, ITEM_SIZES, Leaf, nbytes

Array = np.ndarray[Any, np.dtype[Any]]

# numpy has no bfloat16: its bits travel as uint16.
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype("uint16" if name == "bfloat16" else name) for name in sorted(ITEM_SIZES)
}
_address_of = ctypes.addressof
_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
# The kinds of dtype that each kind of number may become.
_NUMBERS: dict[type, str] = {bool: "b", int: "iuf", float: "f"}


def aligned(dtype: str, shape: tuple[int, ...]) -> Array:
    """A dense array of zeros on 64 bytes, of at least one byte so that it has an address."""
    size = nbytes(dtype, shape)
    raw = np.zeros(max(size, 1) + ALIGNMENT, np.uint8)
    start = -address(raw) % ALIGNMENT
    return np.ndarray(shape, DTYPES[dtype], buffer=raw.data, offset=start)


def address(array: Array) -> int:
    """Where the first element lies."""
    try:
        return _address_of(_first_byte(array))  # three times as fast as the general way
    except (TypeError, ValueError, BufferError):  # read-only, empty or not contiguous
        return int(array.__array_interface__["data"][0])


def from_any(value: object, leaf: Leaf) -> Array:
    """`value` as an array, without a copy where it can be: an array, a DLPack object, or a number for a 0-d leaf.

    InputError naming the leaf if it is none of these or lies on another device. A Python number has no width of its
    own and takes on the leaf's where that holds it.
    """
    if type(value) in _NUMBERS and not leaf.shape:
        return _number(value, leaf)
    try:
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic):
            return np.from_dlpack(value)
        if hasattr(value, "__array__"):
            return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(leaf.name, f"a {type(value).__name__} that gives no array ({error})", str(leaf)) from error
    raise InputError(leaf.name, f"a {type(value).__name__}", str(leaf))


def _number(value: object, leaf: Leaf) -> Array:
    came = f"the {type(value).__name__} {value!r}"
    if leaf.dtype == "bfloat16" or DTYPES[leaf.dtype].kind not in _NUMBERS[type(value)]:
        raise InputError(leaf.name, came, str(leaf))
    try:
        return np.array(value, DTYPES[leaf.dtype])
    except OverflowError as error:
        raise InputError(leaf.name, f"{came}, which it cannot hold", str(leaf)) from error
