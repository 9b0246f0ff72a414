"""Element-wise operations on values: one formula out of several, riding on sums where it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from executor import ir
from executor.compiler import index as ix
from executor.compiler.builder import Builder
from executor.compiler.values import Lazy, Origin, Pending, Shape, Value, cast, expand

Formula = Callable[..., ir.Expr]


def elementwise(
    builder: Builder, formula: Formula, operands: Sequence[Value], shape: Shape, dtype: str, origin: Origin
) -> Value:
    """`formula` of the operands' elements, broadcast to `shape`.

    Where operands are sums over points that are the result's elements, the formula is evaluated at those points.
    """
    if pending := _common(operands, shape):
        return _ride(builder, pending, formula, operands, shape, dtype, origin)
    lazies = [expand(builder.lazy(operand), shape) for operand in operands]
    reads = frozenset().union(*(lazy.reads for lazy in lazies))
    cost = 1 + sum(lazy.cost for lazy in lazies)
    made = Lazy(shape, dtype, lambda at: formula(*(lazy.at(at) for lazy in lazies)), reads, cost, origin=origin)
    return builder.lazy(made)


def converted(builder: Builder, value: Value, dtype: str, origin: Origin) -> Value:
    """The value as another dtype."""
    if value.dtype == dtype:
        return value
    came = value.dtype
    return elementwise(builder, lambda x: cast(x, came, dtype), [value], value.shape, dtype, origin)


def _common(operands: Sequence[Value], shape: Shape) -> Pending | None:
    """The first operand that the formula can ride on."""
    size = ix.size_of(shape)
    fitting = [operand for operand in operands if isinstance(operand, Pending) and operand.size == size]
    return fitting[0] if fitting else None


def _ride(
    builder: Builder,
    base: Pending,
    formula: Formula,
    operands: Sequence[Value],
    shape: Shape,
    dtype: str,
    origin: Origin,
) -> Pending:
    body, reads, elements = base.body, base.reads, []
    at = base.coordinates(shape)
    for operand in operands:
        if isinstance(operand, Pending) and operand.domain == base.domain and operand.size == base.size:
            value = operand.value
            if operand is not base:
                value = shifted(value, len(body))
                body = (*body, *(_shifted_statement(statement, len(body)) for statement in operand.body))
            elements.append(value)
            reads |= operand.reads
        else:
            lazy = builder.lazy(operand)
            elements.append(expand(lazy, shape).at(at))
            reads |= lazy.reads
    return Pending(shape, dtype, base.domain, body, formula(*elements), reads, base.origin)


def shifted(expr: ir.Expr, count: int) -> ir.Expr:
    """`expr` with its locals renumbered to come after `count` others."""
    mapping: dict[ir.Expr, ir.Expr] = {
        local: ir.Local(local.index + count) for local in ir.walk(expr) if isinstance(local, ir.Local)
    }
    return ix.substitute(expr, mapping) if mapping else expr


def _shifted_statement(statement: ir.Let | ir.Reduce | ir.Dot, count: int) -> ir.Let | ir.Reduce | ir.Dot:
    match statement:
        case ir.Let(value=value, dtype=dtype):
            return ir.Let(shifted(value, count), dtype)
        case ir.Reduce(op=op, extents=extents, value=value, dtype=dtype):
            return ir.Reduce(op, extents, shifted(value, count), dtype)
    return statement
