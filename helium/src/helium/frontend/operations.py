"""The torch functions and methods that a kernel may use on tiles, each written with the builder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from helium import dtypes, ir
from helium import language as hl
from helium.errors import DTypeMismatch, IndexMismatch, ShapeMismatch
from helium.frontend.builder import Builder, Operand
from helium.frontend.values import SIZES, Missing, TileVar, as_size
from helium.types import ArithmeticOp, Block, CompareOp, DType, Extent, Fixed, ReduceOp, TileType, UnaryOp, Value, Whole

Handler = Callable[..., Any]
_UNARY: tuple[UnaryOp, ...] = (
    "neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "floor", "ceil", "round",
)  # fmt: skip
_BINARY: dict[str, ArithmeticOp | CompareOp] = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "pow": "pow", "maximum": "max", "minimum": "min",
    "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
}  # fmt: skip


def _dim(source: Value, dim: int) -> int:
    rank = len(source.type.shape)
    if not -rank <= dim < rank:
        shape = ", ".join(map(str, source.type.shape))
        raise IndexMismatch(f"dimension {dim} of a tile of shape [{shape}]", fix=f"use -{rank} to {rank - 1}")
    return dim % rank


def _reduce(b: Builder, op: ReduceOp, x: Value, dim: int | Sequence[int] | None, keepdim: bool) -> Value:
    rank = len(x.type.shape)
    every = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    for index in sorted((_dim(x, d) for d in every), reverse=True):
        x = b.reduce(op, x, index, keepdim)
    return x


def _sum(
    b: Builder, x: Value, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Value:
    if dtype is not None:
        x = b.cast(x, dtypes.NAMES[dtype])
    elif not dtypes.is_float(x.type.dtype):
        x = b.cast(x, "int64")
    return _reduce(b, "sum", x, dim, keepdim)


def _amax(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _reduce(b, "max", x, dim, keepdim)


def _amin(b: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _reduce(b, "min", x, dim, keepdim)


def _extreme(op: ReduceOp) -> Handler:
    def handler(b: Builder, x: Value, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, Value):
            return b.binary(op, x, dim)  # type: ignore[arg-type]
        values = _reduce(b, op, x, dim, keepdim)
        return values if dim is None else (values, Missing(f"the indices of {op}(dim) are not computed by tiles"))

    return handler


def _mean(b: Builder, x: Value, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Operand:
    dtype = x.type.dtype
    if not dtypes.is_float(dtype):
        raise DTypeMismatch(f"mean of a {dtype} tile", fix="convert it: x.to(torch.float32).mean(...)")
    every = range(len(x.type.shape)) if dim is None else [dim] if isinstance(dim, int) else dim
    counts = [b.extent_size(x.type.shape[_dim(x, d)]) for d in every]
    total: Operand = _reduce(b, "sum", b.cast(x, dtypes.compute(dtype)), dim, keepdim)
    for count in counts:
        total = b.binary("div", total, b.tile(count, dtypes.compute(dtype)))
    return b.tile(total, dtype)


def _softmax(b: Builder, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    result = dtypes.NAMES[dtype] if dtype else x.type.dtype
    wide = b.cast(x, dtypes.compute(result))
    shifted = b.binary("sub", wide, _amax(b, wide, dim, True))
    powers = b.unary("exp", shifted)
    return b.tile(b.binary("div", powers, _sum(b, powers, dim, True)), result)


def _logsumexp(b: Builder, x: Value, dim: int, keepdim: bool = False) -> Operand:
    wide = b.cast(x, dtypes.compute(x.type.dtype))
    index = _dim(x, dim)
    top = _amax(b, wide, index)
    powers = b.unary("exp", b.binary("sub", wide, b.unsqueeze(top, index)))
    log = b.tile(b.binary("add", b.unary("log", _sum(b, powers, index)), top), x.type.dtype)
    return b.unsqueeze(log, index) if keepdim else log


def _log_softmax(b: Builder, x: Value, dim: int, dtype: torch.dtype | None = None) -> Operand:
    result = dtypes.NAMES[dtype] if dtype else x.type.dtype
    wide = b.cast(x, dtypes.compute(result))
    return b.tile(b.binary("sub", wide, _logsumexp(b, wide, dim, True)), result)


def _sigmoid(b: Builder, x: Operand) -> Operand:
    source = b.tile(x)
    dtype: DType = source.type.dtype if dtypes.is_float(source.type.dtype) else "float32"
    wide = b.cast(source, dtypes.compute(dtype))
    return b.tile(b.binary("div", 1.0, b.binary("add", 1.0, b.unary("exp", b.unary("neg", wide)))), dtype)


def _silu(b: Builder, x: Value) -> Operand:
    wide = b.cast(x, dtypes.compute(x.type.dtype))
    return b.tile(b.binary("mul", wide, _sigmoid(b, wide)), x.type.dtype)


def _clamp(b: Builder, x: Operand, min: Operand | None = None, max: Operand | None = None) -> Operand:
    x = x if min is None else b.binary("max", x, min)
    return x if max is None else b.binary("min", x, max)


def _to(b: Builder, x: Value, dtype: torch.dtype) -> Value:
    return b.cast(x, dtypes.NAMES[dtype])


def _unsqueeze(b: Builder, x: Value, dim: int) -> Value:
    return b.unsqueeze(x, dim % (len(x.type.shape) + 1))


def _permute(b: Builder, x: Value, order: tuple[int, ...]) -> Value:
    kind = TileType(x.type.dtype, tuple(x.type.shape[d] for d in order))
    return b.define(kind, lambda r: ir.Transpose(r, x, order, b.line))


def _transpose(b: Builder, x: Value, dim0: int = 0, dim1: int = 1) -> Value:
    order = list(range(len(x.type.shape)))
    first, second = _dim(x, dim0), _dim(x, dim1)
    order[first], order[second] = order[second], order[first]
    return _permute(b, x, tuple(order))


def dot(b: Builder, left: Value, right: Value, acc: Value | None = None) -> Value:
    """A matrix product of two tiles, in the accumulator's dtype."""
    if len(left.type.shape) != 2 or len(right.type.shape) != 2:
        raise ShapeMismatch("a product of tiles that are not matrices", fix="use tiles of two dimensions")
    b.common_shape([(left.type.shape[1],), (right.type.shape[0],)])
    dtype = dtypes.promote(left.type.dtype, right.type.dtype)
    if not dtypes.is_float(dtype):
        raise DTypeMismatch(f"a product of {dtype} tiles", fix="convert both: x.to(torch.float32)")
    left, right = b.cast(left, dtype), b.cast(right, dtype)
    wide: DType = "float64" if dtype == "float64" else "float32"
    kind = TileType(wide, (left.type.shape[0], right.type.shape[1]))
    start = None if acc is None else b.broadcast(b.cast(acc, wide), kind.shape)
    return b.define(kind, lambda r: ir.Dot(r, left, right, start, b.line))


def _matmul(b: Builder, left: Value, right: Value) -> Value:
    return b.cast(dot(b, left, right), dtypes.promote(left.type.dtype, right.type.dtype))


def _addmm(b: Builder, input: Value, mat1: Value, mat2: Value) -> Value:
    return b.cast(dot(b, mat1, mat2, input), input.type.dtype)


def _hl_dot(b: Builder, left: Value, right: Value, acc: Value | None = None) -> Value:
    return dot(b, left, right, acc)


def extent(item: object) -> Extent:
    """The extent that an entry of a tile's shape means."""
    if isinstance(item, TileVar):
        return Block(item.axis)
    if isinstance(item, int):
        return Fixed(item)
    if isinstance(item, SIZES):
        return Whole(as_size(item))
    raise ShapeMismatch(f"{type(item).__name__} in the shape of a tile", fix="use tiles, sizes and integer constants")


def _full(b: Builder, shape: Sequence[object], value: Operand, dtype: torch.dtype = torch.float32) -> Value:
    return b.broadcast(b.tile(value, dtypes.NAMES[dtype]), tuple(map(extent, shape)))


def _zeros(b: Builder, shape: Sequence[object], dtype: torch.dtype = torch.float32) -> Value:
    return _full(b, shape, 0, dtype)


def _like(value: float) -> Handler:
    def handler(b: Builder, x: Value, dtype: torch.dtype | None = None) -> Value:
        return b.broadcast(b.constant(value, dtypes.NAMES[dtype] if dtype else x.type.dtype), x.type.shape)

    return handler


def _full_like(b: Builder, x: Value, value: Operand) -> Value:
    return b.broadcast(b.tile(value, x.type.dtype), x.type.shape)


def _lerp(b: Builder, start: Operand, end: Operand, weight: Operand) -> Operand:
    return b.binary("add", start, b.binary("mul", weight, b.binary("sub", end, start)))


def _unary(op: UnaryOp) -> Handler:
    return lambda b, x: b.unary(op, x)


def _binary(op: ArithmeticOp | CompareOp) -> Handler:
    return lambda b, x, other: b.binary(op, x, other)


def _logical_not(b: Builder, x: Value) -> Value:
    return b.unary("not", b.cast(x, "bool"))


_NAMED: dict[str, Handler] = {
    **{op: _unary(op) for op in _UNARY},
    **{name: _binary(op) for name, op in _BINARY.items()},
    "addmm": _addmm,
    "amax": _amax,
    "amin": _amin,
    "clamp": _clamp,
    "full_like": _full_like,
    "lerp": _lerp,
    "log_softmax": _log_softmax,
    "logical_not": _logical_not,
    "logsumexp": _logsumexp,
    "matmul": _matmul,
    "max": _extreme("max"),
    "mean": _mean,
    "min": _extreme("min"),
    "mm": _matmul,
    "ones_like": _like(1),
    "permute": lambda b, x, dims: _permute(b, x, tuple(_dim(x, d) for d in dims)),
    "reciprocal": lambda b, x: b.binary("div", 1.0, x),
    "relu": lambda b, x: b.binary("max", x, 0),
    "sigmoid": _sigmoid,
    "softmax": _softmax,
    "square": lambda b, x: b.binary("mul", x, x),
    "sum": _sum,
    "t": _transpose,
    "transpose": _transpose,
    "unsqueeze": _unsqueeze,
    "where": lambda b, condition, input, other: b.select(condition, input, other),
    "zeros_like": _like(0),
}

FUNCTIONS: dict[Any, Handler] = {
    **{getattr(torch, name): handler for name, handler in _NAMED.items()},
    torch.nn.functional.silu: _silu,
    torch.nn.functional.softmax: lambda b, input, dim, dtype=None: _softmax(b, input, dim, dtype),
    torch.nn.functional.log_softmax: lambda b, input, dim, dtype=None: _log_softmax(b, input, dim, dtype),
    torch.full: _full,
    torch.zeros: _zeros,
    torch.ones: lambda b, shape, dtype=torch.float32: _full(b, shape, 1, dtype),
    hl.dot: _hl_dot,
    hl.full: _full,
    hl.zeros: _zeros,
    math.exp: _unary("exp"),
    math.log: _unary("log"),
    math.sqrt: _unary("sqrt"),
}
"""Handler by the function that a kernel calls; the builder is its first argument, the others are the function's own."""

METHODS: dict[str, Handler] = {
    **{name: h for name, h in _NAMED.items() if hasattr(torch.Tensor, name)},
    "float": lambda b, x: b.cast(x, "float32"),
    "double": lambda b, x: b.cast(x, "float64"),
    "to": _to,
    "type_as": lambda b, x, other: b.cast(x, other.type.dtype),
}
"""Handler by the name of a tile's method."""
