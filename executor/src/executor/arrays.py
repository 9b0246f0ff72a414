"""numpy arrays as the runtime needs them: dtypes by name, aligned memory, addresses, tensors of any library."""

from __future__ import annotations

import ctypes
from typing import Any, cast

import numpy as np

from executor.errors import InputError
from executor.manifest import ALIGNMENT, ITEM_SIZES, nbytes

Array = np.ndarray[Any, np.dtype[Any]]

# numpy has no bfloat16: its bits travel as uint16.
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype("uint16" if name == "bfloat16" else name) for name in sorted(ITEM_SIZES)
}
_SCALARS: dict[type, str] = {bool: "biuf", int: "iuf", float: "f"}


def aligned(dtype: str, shape: tuple[int, ...]) -> Array:
    """A dense array of zeros on 64 bytes, of at least one byte so that it has an address."""
    size = nbytes(dtype, shape)
    raw = np.zeros(max(size, 1) + ALIGNMENT, np.uint8)
    start = -address(raw) % ALIGNMENT
    return np.ndarray(shape, DTYPES[dtype], buffer=raw.data, offset=start)


def address(array: Array) -> int:
    """Where the first element lies."""
    try:
        # Three times as fast as the general way.
        return ctypes.addressof(ctypes.c_char.from_buffer(cast(Any, array)))
    except (TypeError, ValueError, BufferError):  # read-only, empty or not contiguous
        return int(array.__array_interface__["data"][0])


def from_any(value: object, name: str, dtype: str, due: str) -> Array:
    """`value` as an array without a copy where it can be: an array, a DLPack object, or a Python number.

    InputError naming the input if it is none of these or lies on another device. Numbers take on `dtype` where it
    holds them, as they have no width of their own.
    """
    if type(value) in _SCALARS:
        if DTYPES[dtype].kind not in _SCALARS[type(value)]:
            raise InputError(name, f"the {type(value).__name__} {value!r}", due)
        return _number(value, name, dtype, due)
    try:
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray | np.generic):
            return np.from_dlpack(value)
        if hasattr(value, "__array__"):
            return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(name, f"a {type(value).__name__} that gives no array ({error})", due) from error
    raise InputError(name, f"a {type(value).__name__}", due)


def _number(value: object, name: str, dtype: str, due: str) -> Array:
    try:
        return np.array(value, DTYPES[dtype])
    except OverflowError as error:
        raise InputError(name, f"the number {value!r}, which it cannot hold", due) from error
