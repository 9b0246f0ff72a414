"""What an operation lowers to before any loop is made: elements by formula, or sums with a formula on top.

Keeping values in this form until somebody needs them in memory is what fuses operations: views become arithmetic on
indexes, element-wise operations become one expression, and what follows a product or a reduction rides on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias, overload

from executor import ir
from executor.compiler import index as ix

Indexes: TypeAlias = Sequence[ir.Expr]
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from: the operation, and the line of the model."""

    operation: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Lazy:
    """A tensor by formula: `at` gives the element at some indexes. `reads` are the buffers that it loads from.

    `cost` is about how many operations an element takes; `buffer` is given if it is that whole buffer as it lies.
    """

    shape: Shape
    dtype: str
    at: Callable[[Indexes], ir.Expr]
    reads: frozenset[int] = frozenset()
    cost: int = 0
    buffer: int | None = None
    origin: Origin = Origin()

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Pending:
    """A tensor whose elements are `value` at the points of `domain`, after `body` has made its locals there.

    The points in row-major order are the elements of `shape` in row-major order.
    """

    shape: Shape
    dtype: str
    domain: Shape
    body: tuple[ir.Let | ir.Reduce | ir.Dot, ...]
    value: ir.Expr
    reads: frozenset[int]
    origin: Origin = Origin()

    @property
    def size(self) -> int:
        return prod(self.shape)

    def coordinates(self, shape: Shape) -> Indexes:
        """Indexes into a tensor of `shape` and this size, at a point of the domain."""
        axes = [ir.Axis(axis) for axis in range(len(self.domain))]
        return axes if shape == self.domain else ix.reshape(axes, self.domain, shape)


Value: TypeAlias = Lazy | Pending


def constant(value: bool | int | float, shape: Shape, dtype: str) -> Lazy:
    """The same number everywhere."""
    kind: type = {"bool": bool, "float32": float}.get(dtype, int)
    number = ir.Const(kind(value), dtype)
    return Lazy(shape, dtype, lambda at: number)


def whole(buffer: int, shape: Shape, dtype: str, origin: Origin = Origin()) -> Lazy:
    """All of a buffer, as it lies."""
    strides = ix.contiguous(shape)
    load: Callable[[Indexes], ir.Expr] = lambda at: ir.Load(buffer, ix.linear(at, strides))  # noqa: E731
    return Lazy(shape, dtype, load, frozenset([buffer]), 0, buffer, origin)


def view(base: Lazy, shape: Shape, back: Callable[[Indexes], Indexes]) -> Lazy:
    """A tensor of `shape` whose element at some indexes is the one of `base` at `back(indexes)`."""
    return replace(base, shape=shape, at=lambda at: base.at(back(at)), buffer=None)


@overload
def reshape(value: Lazy, shape: Shape) -> Lazy: ...
@overload
def reshape(value: Pending, shape: Shape) -> Pending: ...
@overload
def reshape(value: Value, shape: Shape) -> Value: ...
def reshape(value: Value, shape: Shape) -> Value:
    """The same elements in the same order."""
    if isinstance(value, Pending):
        return replace(value, shape=shape)
    made = view(value, shape, lambda at: ix.reshape(at, shape, value.shape))
    return replace(made, buffer=value.buffer)


def expand(value: Lazy, shape: Shape) -> Lazy:
    """Broadcast to `shape`, as numpy does."""
    if value.shape == shape:
        return value
    skip = len(shape) - len(value.shape)
    fixed = [size == 1 for size in value.shape]
    return view(value, shape, lambda at: [ix.const(0) if one else i for one, i in zip(fixed, at[skip:], strict=True)])


def cast(expr: ir.Expr, came: str, due: str) -> ir.Expr:
    """`expr` of dtype `came` as `due`."""
    if came == due:
        return expr
    if isinstance(expr, ir.Const):
        kind: type = {"bool": bool, "float32": float}.get(due, int)
        return ir.Const(kind(expr.value), due)
    return ir.Op("cast", due, (expr,))
