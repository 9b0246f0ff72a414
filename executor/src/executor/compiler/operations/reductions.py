"""Lowerings of reductions."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from executor import ir
from executor.compiler import index as ix
from executor.compiler.lower import Context, Result, args_of, dtype_of, kwargs_of, lowers, origin_of, shape_of
from executor.compiler.operations.elementwise import FLOAT, number, op
from executor.compiler.operations.fuse import converted, elementwise
from executor.compiler.values import Lazy, Origin, Pending, Value, reshape

aten = torch.ops.aten


def reduced(base: Lazy, axes: list[int], how: ir.Reduction, origin: Origin) -> Pending:
    """`base` reduced over `axes`, which vanish from its shape."""
    kept = [axis for axis in range(len(base.shape)) if axis not in axes]
    domain = tuple(base.shape[axis] for axis in kept)
    order = [*kept, *axes]
    at = [ir.Axis(order.index(axis)) for axis in range(len(base.shape))]
    statement = ir.Reduce(how, tuple(base.shape[axis] for axis in axes), base.at(at), base.dtype)
    dtype = ir.made_by(statement)
    return Pending(domain, dtype, domain, (statement,), ir.Local(0), base.reads, origin)


def axes_of(argument: Any, rank: int) -> list[int]:
    """The axes that an argument names: all of them if it is None or empty."""
    if argument is None or argument == []:
        return list(range(rank))
    return sorted({axis % rank for axis in ([argument] if isinstance(argument, int) else argument)}) if rank else []


def reduce_node(context: Context, node: fx.Node, how: ir.Reduction, dtype: str, axes: Any) -> Value:
    """The node's first argument, as `dtype`, reduced over `axes`, in the node's own shape."""
    origin = origin_of(node)
    base = context.builder.lazy(converted(context.builder, context.value(args_of(node)[0]), dtype, origin))
    if len(node.users) > 1 and base.cost > 2:
        base = context.builder.realise(base)
    return reshape(reduced(base, axes_of(axes, len(base.shape)), how, origin), shape_of(node))


def _argument(node: fx.Node, position: int) -> Any:
    return args_of(node)[position] if len(args_of(node)) > position else None


@lowers(aten.sum.default, aten.sum.dim_IntList)
def total(context: Context, node: fx.Node) -> Value:
    return reduce_node(context, node, "sum", dtype_of(node), _argument(node, 1))


@lowers(aten.prod.default, aten.prod.dim_int)
def product(context: Context, node: fx.Node) -> Value:
    return reduce_node(context, node, "prod", dtype_of(node), _argument(node, 1))


@lowers(aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)
def extreme(context: Context, node: fx.Node) -> Value:
    how: ir.Reduction = "max" if node.target in (aten.amax.default, aten.max.default) else "min"
    return reduce_node(context, node, how, dtype_of(node), _argument(node, 1))


@lowers(aten.any.default, aten.any.dim, aten.any.dims, aten.all.default, aten.all.dim, aten.all.dims)
def truth(context: Context, node: fx.Node) -> Value:
    how: ir.Reduction = "any" if "any" in str(node.target) else "all"
    return reduce_node(context, node, how, "bool", _argument(node, 1))


@lowers(aten.argmax.default, aten.argmin.default)
def position(context: Context, node: fx.Node) -> Value:
    how: ir.Reduction = "argmax" if node.target is aten.argmax.default else "argmin"
    return reduce_node(context, node, how, context.value(args_of(node)[0]).dtype, _argument(node, 1))


@lowers(aten.max.dim, aten.min.dim)
def extreme_and_position(context: Context, node: fx.Node) -> Result:
    base, origin = context.realised(args_of(node)[0]), origin_of(node)
    axes = axes_of(args_of(node)[1], len(base.shape))
    shape = tuple(node.meta["val"][0].shape)
    ways: tuple[ir.Reduction, ir.Reduction] = ("max", "argmax") if node.target is aten.max.dim else ("min", "argmin")
    return tuple(reshape(context.builder.realise(reduced(base, axes, how, origin)), shape) for how in ways)


@lowers(aten.mean.default, aten.mean.dim)
def mean(context: Context, node: fx.Node) -> Value:
    made = reduce_node(context, node, "sum", dtype_of(node), _argument(node, 1))
    count = context.value(args_of(node)[0]).size // max(made.size, 1)
    return scaled(context, made, 1 / count if count & (count - 1) == 0 else 0.0, count, origin_of(node))


def scaled(context: Context, value: Value, inverse: float, count: int, origin: Origin) -> Value:
    """value / count; by the inverse where that is exact."""
    formula = (
        (lambda x: op("mul", FLOAT, x, number(inverse))) if inverse else (lambda x: op("div", FLOAT, x, number(count)))
    )
    return elementwise(context.builder, formula, [value], value.shape, FLOAT, origin)


@lowers(aten.var.correction)
def variance(context: Context, node: fx.Node) -> Value:
    base, origin, builder = context.realised(args_of(node)[0]), origin_of(node), context.builder
    axes = axes_of(_argument(node, 1), len(base.shape))
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(base.shape))
    count = base.size // max(ix.size_of(kept), 1)
    middle = scaled(context, reshape(reduced(base, axes, "sum", origin), kept), 0.0, count, origin)
    square = elementwise(
        builder,
        lambda x, y: _square(op("sub", FLOAT, x, y)),
        [base, builder.realise(middle)],
        base.shape,
        FLOAT,
        origin,
    )
    correction = kwargs_of(node).get("correction", 1)
    total = reshape(reduced(builder.lazy(square), axes, "sum", origin), shape_of(node))
    divisor = max(count - (1 if correction is None else int(correction)), 0)
    return elementwise(builder, lambda x: op("div", FLOAT, x, number(divisor)), [total], total.shape, FLOAT, origin)


def _square(x: ir.Expr) -> ir.Expr:
    return op("mul", FLOAT, x, x)
