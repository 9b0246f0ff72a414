"""The element-wise operations of the loop IR in numpy, and bfloat16 as float32 values of that precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from executor.arrays import DTYPES, Array

_erf = np.frompyfunc(math.erf, 1, 1)


def value_dtype(dtype: str) -> np.dtype[Any]:
    """What values of `dtype` are computed in: bfloat16 in float32, rounded after each operation."""
    return np.dtype(np.float32) if dtype == "bfloat16" else DTYPES[dtype]


def from_storage(stored: Array, dtype: str) -> Array:
    """Values out of a buffer of `dtype`."""
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored


def to_storage(values: Array, dtype: str) -> Array:
    """Values as a buffer of `dtype` keeps them."""
    if dtype != "bfloat16":
        return values.astype(DTYPES[dtype], copy=False)
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(values.shape)
    # To the nearest, ties to even; a NaN is kept one by setting a bit that rounding would not reach.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def settle(values: Any, dtype: str) -> Array:
    """The result of an operation in its dtype."""
    settled = np.asarray(values).astype(value_dtype(dtype), copy=False)
    return from_storage(to_storage(settled, dtype), dtype) if dtype == "bfloat16" else settled


def apply(name: str, args: list[Array], dtype: str) -> Array:
    """The operation `name` of `executor.ir` on arrays that broadcast; its result is of `dtype`."""
    if name == "cast":
        return settle(_cast(args[0], dtype), dtype)
    return settle(OPERATIONS[name](*args), dtype)


def _cast(value: Array, dtype: str) -> Any:
    if dtype == "bool":
        return value != 0
    return value.astype(value_dtype(dtype), copy=False)


def _trunc_div(left: Array, right: Array) -> Any:
    """Division that rounds toward zero: exact once the remainder is gone."""
    return np.floor_divide(left - np.fmod(left, right), right)


def _sigmoid(value: Array) -> Any:
    return 1 / (1 + np.exp(-value))


def _sign(value: Array) -> Any:
    """-1, 0 or 1; 0 for NaN, as torch has it."""
    return (value > 0).astype(value.dtype) - (value < 0).astype(value.dtype)


def _reciprocal(value: Array) -> Any:
    return np.ones((), value.dtype) / value


def _accurate_erf(value: Array) -> Any:
    return np.asarray(_erf(value.astype(np.float64)), dtype=np.float64)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "atan2": np.arctan2,
    "ceil": np.ceil,
    "cos": np.cos,
    "div": np.divide,
    "eq": np.equal,
    "erf": _accurate_erf,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "fmod": np.fmod,
    "ge": np.greater_equal,
    "gt": np.greater,
    "idiv": np.floor_divide,
    "imod": np.remainder,
    "isnan": np.isnan,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "pow": np.power,
    "reciprocal": _reciprocal,
    "round": np.rint,
    "rsqrt": lambda value: _reciprocal(np.sqrt(value)),
    "shl": np.left_shift,
    "shr": np.right_shift,
    "sigmoid": _sigmoid,
    "sign": _sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "sub": np.subtract,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
    "trunc_div": _trunc_div,
    "where": np.where,
    "xor": np.bitwise_xor,
}
