"""Lowerings that take several passes over a row: softmax and layer normalisation."""

from __future__ import annotations

import math

import torch
from torch import fx

from executor import ir
from executor.compiler import index as ix
from executor.compiler.lower import Context, Result, args_of, lowers, origin_of, shape_of, source_of
from executor.compiler.operations.elementwise import FLOAT, number, op
from executor.compiler.operations.fuse import converted
from executor.compiler.values import Lazy, Value, view, whole
from executor.errors import UnsupportedError

aten = torch.ops.aten

# A row is read several times: a longer formula than this goes into memory first.
_WORTH_REPEATING = 3


def _rows(context: Context, node: fx.Node) -> Lazy:
    value = converted(context.builder, context.value(args_of(node)[0]), FLOAT, origin_of(node))
    lazy = context.builder.lazy(value)
    return lazy if lazy.cost <= _WORTH_REPEATING else context.builder.realise(lazy)


def _last(base: Lazy, axis: int) -> Lazy:
    """`base` with `axis` moved to the end."""
    rank = len(base.shape)
    order = [other for other in range(rank) if other != axis] + [axis]
    shape = tuple(base.shape[other] for other in order)
    return view(base, shape, lambda at: [at[order.index(other)] for other in range(rank)])


@lowers(aten._softmax.default, aten._safe_softmax.default, aten._log_softmax.default)
def softmax(context: Context, node: fx.Node) -> Value:
    """The exponentials lie in the result between the passes. A row of -inf gives NaN; in the safe form, zeros."""
    base, rank = _rows(context, node), len(shape_of(node))
    axis = int(args_of(node)[1]) % max(rank, 1)
    rows = _last(base, axis) if rank else base
    outer, extent = rows.shape[:-1], rows.shape[-1:]
    made = context.builder.temporary(FLOAT, shape_of(node))
    at = [ir.Axis(index) for index in range(rank)]
    strides = ix.contiguous(base.shape)
    place = ix.linear([*at[:axis], at[-1], *at[axis:-1]] if rank else [], strides)
    element = rows.at(at)
    top = ir.Reduce("max", extent, element, FLOAT)
    body = _log_passes(made, extent, place, element) if node.target is aten._log_softmax.default else _passes(
        made, extent, place, element, node.target is aten._safe_softmax.default
    )  # fmt: skip
    context.builder.nest(outer, (top, *body), origin_of(node))
    return whole(made, shape_of(node), FLOAT, origin_of(node))


def _passes(made: int, extent: tuple[int, ...], place: ir.Expr, element: ir.Expr, safe: bool) -> list[ir.Statement]:
    top: ir.Expr = ir.Local(0)
    if safe:
        top = op("where", FLOAT, op("eq", "bool", top, number(-math.inf)), number(0), top)
    back = ir.Load(made, place)
    inverse: ir.Expr = op("div", FLOAT, number(1), ir.Local(2))
    if safe:
        inverse = op("where", FLOAT, op("eq", "bool", ir.Local(2), number(0)), number(0), inverse)
    return [
        ir.Store(made, extent, place, op("exp", FLOAT, op("sub", FLOAT, element, top))),
        ir.Reduce("sum", extent, back, FLOAT),
        ir.Let(inverse, FLOAT),
        ir.Store(made, extent, place, op("mul", FLOAT, back, ir.Local(3))),
    ]


def _log_passes(made: int, extent: tuple[int, ...], place: ir.Expr, element: ir.Expr) -> list[ir.Statement]:
    less = op("sub", FLOAT, element, ir.Local(0))
    return [
        ir.Reduce("sum", extent, op("exp", FLOAT, less), FLOAT),
        ir.Let(op("log", FLOAT, ir.Local(1)), FLOAT),
        ir.Store(made, extent, place, op("sub", FLOAT, less, ir.Local(2))),
    ]


@lowers(aten.native_layer_norm.default)
def layer_norm(context: Context, node: fx.Node) -> Result:
    """Mean, then variance about it, then the result, row by row."""
    if any(user.args[1] != 0 for user in node.users):
        raise UnsupportedError(
            "the statistics of a layer norm", source_of(node), "compute mean and variance by themselves"
        )
    normal = tuple(args_of(node)[1])
    base = _rows(context, node)
    outer, inner = base.shape[: len(base.shape) - len(normal)], base.shape[len(base.shape) - len(normal) :]
    at = [ir.Axis(axis) for axis in range(len(base.shape))]
    count = number(ix.size_of(inner))
    element = base.at(at)
    less = op("sub", FLOAT, element, ir.Local(1))
    spread = op("add", FLOAT, op("div", FLOAT, ir.Local(2), count), number(args_of(node)[4]))
    result: ir.Expr = op("mul", FLOAT, less, ir.Local(3))
    for argument, name in ((args_of(node)[2], "mul"), (args_of(node)[3], "add")):
        if argument is not None:
            result = op(name, FLOAT, result, context.lazy(argument).at(at[len(outer) :]))
    made = context.builder.temporary(FLOAT, base.shape)
    body = (
        ir.Reduce("sum", inner, element, FLOAT),
        ir.Let(op("div", FLOAT, ir.Local(0), count), FLOAT),
        ir.Reduce("sum", inner, op("mul", FLOAT, less, less), FLOAT),
        ir.Let(op("rsqrt", FLOAT, spread), FLOAT),
        ir.Store(made, inner, ix.linear(at, ix.contiguous(base.shape)), result),
    )
    context.builder.nest(outer, body, origin_of(node))
    return (whole(made, base.shape, FLOAT, origin_of(node)),)


@lowers(aten.rms_norm.default)
def rms_norm(context: Context, node: fx.Node) -> Value:
    """x / sqrt(mean(x²) + eps) * weight over the last dimensions."""
    given = args_of(node)
    weight, eps = (given[place] if len(given) > place else None for place in (2, 3))
    base, axes = _rows(context, node), len(given[1])
    outer, inner = base.shape[: len(base.shape) - axes], base.shape[len(base.shape) - axes :]
    at = [ir.Axis(axis) for axis in range(len(base.shape))]
    element = base.at(at)
    mean = op("div", FLOAT, ir.Local(0), number(ix.size_of(inner)))
    spread = op("add", FLOAT, mean, number(torch.finfo(torch.float32).eps if eps is None else eps))
    result: ir.Expr = op("mul", FLOAT, element, ir.Local(1))
    if weight is not None:
        result = op("mul", FLOAT, result, context.lazy(weight).at(at[len(outer) :]))
    made = context.builder.temporary(FLOAT, base.shape)
    body = (
        ir.Reduce("sum", inner, op("mul", FLOAT, element, element), FLOAT),
        ir.Let(op("rsqrt", FLOAT, spread), FLOAT),
        ir.Store(made, inner, ix.linear(at, ix.contiguous(base.shape)), result),
    )
    context.builder.nest(outer, body, origin_of(node))
    return whole(made, base.shape, FLOAT, origin_of(node))
