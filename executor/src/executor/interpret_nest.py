"""One nest of the loop IR with numpy: every statement at once over all points, in pieces that fit in memory.

Each axis is an array that varies along a dimension of its own; values broadcast, so an expression costs what the axes
in it cost. Axes are given as ranges, so that a piece of the loops is the same nest over shorter ranges.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from executor import ir
from executor.arrays import Array
from executor.errors import ManifestError, ProgramRunError
from executor.expressions import Values, evaluate
from executor.interpret_ops import apply, from_storage, settle, to_storage, value_dtype

Ranges = tuple[tuple[int, int], ...]

# Points of one piece: some tens of megabytes for each array of a computation.
_PIECE = 1 << 21
_REDUCTIONS: dict[str, Callable[..., Any]] = {"min": np.min, "max": np.max, "any": np.any, "all": np.all}


@dataclass(slots=True)
class Piece:
    """A part of a nest's points: `ranges` of the outer axes, and the scalars made so far, an array of these axes."""

    nest: ir.Nest
    buffers: Sequence[Array]
    values: Values
    ranges: Ranges
    method: str
    scalars: dict[int, Array] = field(default_factory=dict)


def run_nest(nest: ir.Nest, buffers: Sequence[Array], values: Values, method: str) -> None:
    """Run `nest` on flat `buffers`, with the symbols' `values`; ProgramRunError for an index that a Check stops."""
    outer = _ranges(nest.outer, values)
    inner = max((math.prod(_sizes(_extents(statement), values)) for statement in nest.body), default=1)
    for ranges in _pieces(outer, max(_PIECE // max(inner, 1), 1)):
        piece = Piece(nest, buffers, values, ranges, method)
        for index, statement in enumerate(nest.body):
            _run_statement(piece, index, statement)


def _run_statement(piece: Piece, index: int, statement: ir.Statement) -> None:
    match statement:
        case ir.Let(value=value, dtype=dtype):
            made = _spread(settle(evaluate_expr(piece, value, piece.ranges), dtype), piece.ranges)
            piece.scalars[index] = made
        case ir.Reduce():
            piece.scalars[index] = _reduce(piece, statement)
        case ir.Dot():
            piece.scalars[index] = _dot(piece, statement)
        case ir.Store():
            _store(piece, statement)


def evaluate_expr(piece: Piece, expr: ir.Expr, ranges: Ranges) -> Array:
    """`expr` over `ranges`, broadcastable to them."""
    match expr:
        case ir.Const(value=number, dtype=dtype):
            return settle(number, dtype)
        case ir.Axis(index=index):
            start, stop = ranges[index]
            return np.arange(start, stop).reshape((-1,) + (1,) * (len(ranges) - index - 1))
        case ir.Size(expression=expression):
            return np.asarray(evaluate(expression, piece.values))
        case ir.Local(index=index):
            made = piece.scalars[index]
            return made.reshape(made.shape + (1,) * (len(ranges) - made.ndim))
        case ir.Load(buffer=buffer, index=at):
            return _load(piece, buffer, evaluate_expr(piece, at, ranges))
        case ir.Check():
            return _check(piece, expr, evaluate_expr(piece, expr.value, ranges))
        case ir.Op(name=name, args=args, dtype=dtype):
            return apply(name, [evaluate_expr(piece, arg, ranges) for arg in args], dtype)
    raise ManifestError(f"method {piece.method!r}: {type(expr).__name__} is no expression of the ir")


def _load(piece: Piece, buffer: int, where: Array) -> Array:
    stored = piece.buffers[buffer]
    outside = _outside(where, stored.size)
    if outside is not None:
        raise ManifestError(f"method {piece.method!r}: a load of element {outside} of {stored.size}")
    dtype = piece.nest.parameters[buffer]
    if not stored.size:
        return np.zeros(where.shape, value_dtype(dtype))
    return from_storage(np.take(stored, where, mode="clip"), dtype)


def _check(piece: Piece, check: ir.Check, value: Array) -> Array:
    size = evaluate(check.size, piece.values)
    if check.wrap:
        value = np.where(value < 0, value + size, value)
    if _outside(value, size) is not None:
        raise ProgramRunError(piece.method, check.code, "an index out of range")
    return value


def _outside(index: Array, size: int) -> int | None:
    """An index that is not within 0 and `size`, if there is one."""
    if not index.size or (index.min() >= 0 and index.max() < size):
        return None
    return int(index[(index < 0) | (index >= size)][0])


def _reduce(piece: Piece, statement: ir.Reduce) -> Array:
    ranges = piece.ranges + _ranges(statement.extents, piece.values)
    whole = _spread(settle(evaluate_expr(piece, statement.value, ranges), statement.dtype), ranges)
    flat = whole.reshape((*_shape(piece.ranges), math.prod(_shape(ranges[len(piece.ranges) :]))))
    match statement.op:
        case "argmin":
            return np.asarray(flat.argmin(axis=-1))
        case "argmax":
            return np.asarray(flat.argmax(axis=-1))
        case "sum":
            return settle(flat.sum(axis=-1, dtype=flat.dtype), statement.dtype)
        case "prod":
            return settle(flat.prod(axis=-1, dtype=flat.dtype), statement.dtype)
    return settle(_REDUCTIONS[statement.op](flat, axis=-1), statement.dtype)


def _dot(piece: Piece, statement: ir.Dot) -> Array:
    """The sum of products by einsum over views of the buffers; an axis that a side repeats is left out of it."""
    rank, extent = len(piece.ranges), evaluate(statement.extent, piece.values)
    shape = _shape(piece.ranges)
    sides, labels = [], []
    for side in (statement.left, statement.right):
        view, kept = _view(piece, side, extent)
        sides.append(view)
        labels.append(kept)
    out = [axis for axis in range(rank) if axis in {*labels[0], *labels[1]}]
    made = np.einsum(sides[0], labels[0], sides[1], labels[1], out, optimize=True)
    spread = made.reshape([shape[axis] if axis in out else 1 for axis in range(rank)])
    return np.broadcast_to(spread, shape)


def _view(piece: Piece, side: ir.Strided, extent: int) -> tuple[Array, list[int]]:
    """A view of one side of a Dot and the axes along which it varies; the sum's own axis is always among them."""
    stored = piece.buffers[side.buffer]
    strides = [evaluate(stride, piece.values) for stride in side.strides]
    ranges = (*piece.ranges, (0, extent))
    start = evaluate(side.offset, piece.values) + sum(s * r[0] for s, r in zip(strides, ranges, strict=True))
    kept = [axis for axis, stride in enumerate(strides) if stride or axis == len(strides) - 1]
    shape = [_shape(ranges)[axis] for axis in kept]
    steps = [strides[axis] * (size - 1) for axis, size in zip(kept, shape, strict=True)]
    if math.prod(shape) == 0:
        return np.zeros(shape, stored.dtype), kept
    first, last = start + sum(min(step, 0) for step in steps), start + sum(max(step, 0) for step in steps)
    if first < 0 or last >= stored.size:
        raise ManifestError(f"method {piece.method!r}: a product over elements {first} to {last} of {stored.size}")
    bytes_ = [strides[axis] * stored.itemsize for axis in kept]
    return np.lib.stride_tricks.as_strided(stored[start:], shape, bytes_, writeable=False), kept


def _store(piece: Piece, statement: ir.Store) -> None:
    ranges = piece.ranges + _ranges(statement.extents, piece.values)
    if not piece.buffers[statement.buffer].flags.writeable:
        raise ManifestError(f"method {piece.method!r}: a store into what it only reads")
    fits = 1 if _must_be_in_order(piece, statement) else max(_PIECE // max(math.prod(_shape(piece.ranges)), 1), 1)
    for extents in _pieces(ranges[len(piece.ranges) :], fits):
        _store_piece(piece, statement, piece.ranges + extents)


def _store_piece(piece: Piece, statement: ir.Store, ranges: Ranges) -> None:
    target = piece.buffers[statement.buffer]
    index = evaluate_expr(piece, statement.index, ranges)
    outside = _outside(index, target.size)
    if outside is not None:
        raise ManifestError(f"method {piece.method!r}: a store to element {outside} of {target.size}")
    value = evaluate_expr(piece, statement.value, ranges)
    target[_spread(index, ranges)] = to_storage(value, piece.nest.parameters[statement.buffer])


def _must_be_in_order(piece: Piece, statement: ir.Store) -> bool:
    """Whether an element stored may be read later by the same statement: then its extents run one by one.

    An element that is only read to be stored again at the same place is not, unless data says which place that is.
    """
    target = piece.buffers[statement.buffer]
    loads = [expr for part in (statement.value, statement.index) for expr in ir.walk(part) if isinstance(expr, ir.Load)]
    reads = [load for load in loads if np.shares_memory(piece.buffers[load.buffer], target)]
    from_data = any(isinstance(expr, ir.Load | ir.Local) for expr in ir.walk(statement.index))
    return bool(reads) and (from_data or any(load.index != statement.index for load in reads))


def _pieces(ranges: Ranges, most: int) -> Iterator[Ranges]:
    """`ranges` cut into parts of at most `most` points, in row-major order."""
    parts: list[list[tuple[int, int]]] = []
    for start, stop in reversed(ranges):
        block = max(min(most, stop - start), 1)
        parts.append([(at, min(at + block, stop)) for at in range(start, stop, block)])
        most = most // block if block == stop - start else 1
    return itertools.product(*reversed(parts))


def _extents(statement: ir.Statement) -> tuple[ir.Dim, ...]:
    return statement.extents if isinstance(statement, ir.Reduce) else ()


def _sizes(dims: Sequence[ir.Dim], values: Values) -> list[int]:
    return [evaluate(dim, values) for dim in dims]


def _ranges(dims: Sequence[ir.Dim], values: Values) -> Ranges:
    return tuple((0, size) for size in _sizes(dims, values))


def _shape(ranges: Ranges) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in ranges)


def _spread(value: Array, ranges: Ranges) -> Array:
    return np.broadcast_to(value, _shape(ranges))
