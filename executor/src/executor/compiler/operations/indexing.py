"""Lowerings of reading and writing at indexes that are data: embedding, gather, index_put and the like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import fx

from executor import ir
from executor.compiler import index as ix
from executor.compiler.lower import (
    Context,
    args_of,
    dtype_of,
    lowers,
    operation_of,
    origin_of,
    shape_of,
    source_of,
    whole_of,
)
from executor.compiler.operations.fuse import converted
from executor.compiler.operations.views import slice_bounds
from executor.compiler.values import Indexes, Lazy, Value, expand
from executor.errors import UnsupportedError

aten = torch.ops.aten


def _checked(context: Context, node: fx.Node, position: ir.Expr, size: int, wrap: bool) -> ir.Expr:
    low = -size if wrap else 0
    code = context.builder.code(f"{operation_of(node)}: an index outside {low}..{size - 1}")
    return ir.Check(position, size, wrap, code)


def _positions(context: Context, argument: Any, node: fx.Node) -> Lazy:
    """An index tensor as int64."""
    if argument.meta["val"].dtype in (torch.bool, torch.uint8):
        raise UnsupportedError("indexing with a mask", source_of(node), "use torch.where, which keeps the shape fixed")
    return context.builder.lazy(converted(context.builder, context.value(argument), "int64", origin_of(node)))


def _gathered(node: fx.Node, base: Lazy, positions: Sequence[Lazy], at: Any) -> Lazy:
    reads = base.reads.union(*(position.reads for position in positions))
    cost = base.cost + 1 + sum(position.cost for position in positions)
    return Lazy(shape_of(node), base.dtype, at, reads, cost, origin=origin_of(node))


@lowers(aten.embedding.default)
def embedding(context: Context, node: fx.Node) -> Value:
    table, ids = context.lazy(args_of(node)[0]), _positions(context, args_of(node)[1], node)

    def at(indexes: Indexes) -> ir.Expr:
        return table.at([_checked(context, node, ids.at(indexes[:-1]), table.shape[0], False), indexes[-1]])

    return _gathered(node, table, [ids], at)


@lowers(aten.index_select.default)
def index_select(context: Context, node: fx.Node) -> Value:
    base, ids = context.lazy(args_of(node)[0]), _positions(context, args_of(node)[2], node)
    axis = int(args_of(node)[1]) % len(base.shape)

    def at(indexes: Indexes) -> ir.Expr:
        position = ids.at([indexes[axis]] if ids.shape else [])
        checked = _checked(context, node, position, base.shape[axis], False)
        return base.at([*indexes[:axis], checked, *indexes[axis + 1 :]])

    return _gathered(node, base, [ids], at)


@lowers(aten.gather.default)
def gather(context: Context, node: fx.Node) -> Value:
    base, ids = context.lazy(args_of(node)[0]), _positions(context, args_of(node)[2], node)
    axis = int(args_of(node)[1]) % len(base.shape)

    def at(indexes: Indexes) -> ir.Expr:
        checked = _checked(context, node, ids.at(indexes), base.shape[axis], False)
        return base.at([*indexes[:axis], checked, *indexes[axis + 1 :]])

    return _gathered(node, base, [ids], at)


class _Advanced:
    """Where `base[indices]` finds its elements; None among the indices keeps a dimension."""

    def __init__(self, context: Context, node: fx.Node, shape: tuple[int, ...], indices: Sequence[Any]) -> None:
        self._context, self._node, self._base = context, node, shape
        self.given = [axis for axis, given in enumerate(indices) if given is not None]
        positions = [_positions(context, indices[axis], node) for axis in self.given]
        self.common = np.broadcast_shapes(*(position.shape for position in positions))
        self.positions = [expand(position, self.common) for position in positions]
        adjacent = self.given == list(range(self.given[0], self.given[-1] + 1))
        self.start = self.given[0] if adjacent else 0
        kept = [size for axis, size in enumerate(shape) if axis not in self.given]
        self.shape = (*kept[: self.start], *self.common, *kept[self.start :])

    def back(self, at: Indexes) -> list[ir.Expr]:
        """Indexes into the base of the element at `at` of the result."""
        end = self.start + len(self.common)
        kept = iter([*at[: self.start], *at[end:]])
        found = {axis: p.at(at[self.start : end]) for axis, p in zip(self.given, self.positions, strict=True)}
        return [
            _checked(self._context, self._node, found[axis], size, True) if axis in found else next(kept)
            for axis, size in enumerate(self._base)
        ]


@lowers(aten.index.Tensor)
def index(context: Context, node: fx.Node) -> Value:
    base = context.lazy(args_of(node)[0])
    way = _Advanced(context, node, base.shape, args_of(node)[1])
    return _gathered(node, base, way.positions, lambda at: base.at(way.back(at)))


@lowers(aten.index_put.default)
def index_put(context: Context, node: fx.Node) -> Value:
    if len(args_of(node)) > 3 and args_of(node)[3]:
        raise UnsupportedError("index_put with accumulate=True", source_of(node), "add the values up before writing")
    way = _Advanced(context, node, shape_of(node), args_of(node)[1])
    return _overwrite(context, node, context.value(args_of(node)[2]), way.shape, way.back)


@lowers(aten.slice_scatter.default)
def slice_scatter(context: Context, node: fx.Node) -> Value:
    shape, part = shape_of(node), args_of(node)[1].meta["val"]
    axis = int(args_of(node)[2]) % len(shape) if len(args_of(node)) > 2 else 0
    start, step = slice_bounds(shape[axis], args_of(node)[3:])

    def place(at: Indexes) -> list[ir.Expr]:
        return [*at[:axis], ix.add(ix.scale(at[axis], step), ix.const(start)), *at[axis + 1 :]]

    return _overwrite(context, node, context.value(args_of(node)[1]), tuple(part.shape), place)


@lowers(aten.select_scatter.default)
def select_scatter(context: Context, node: fx.Node) -> Value:
    shape = shape_of(node)
    axis = int(args_of(node)[2]) % len(shape)
    position = ix.const(int(args_of(node)[3]) % shape[axis])
    part = (*shape[:axis], *shape[axis + 1 :])
    return _overwrite(
        context, node, context.value(args_of(node)[1]), part, lambda at: [*at[:axis], position, *at[axis:]]
    )


def _overwrite(context: Context, node: fx.Node, value: Value, shape: tuple[int, ...], place: Any) -> Value:
    """The first argument with `value`, broadcast to `shape`, written at `place` of its indexes.

    State is written where it lies if nobody needs what it held; so is a temporary that ends here.
    """
    builder = context.builder
    target = _target(context, node)
    value = converted(builder, value, dtype_of(node), origin_of(node))
    if target in value.reads:
        value = builder.realise(value)
    if value.shape != shape:
        value = expand(builder.lazy(value), shape)
    strides = ix.contiguous(shape_of(node))
    builder.store(replace(value, origin=origin_of(node)), target, lambda at: ix.linear(place(at), strides))
    return whole_of(builder, target)


def _target(context: Context, node: fx.Node) -> int:
    base = args_of(node)[0]
    value = context.value(base)
    own = isinstance(value, Lazy) and value.buffer is not None and value.shape == shape_of(node)
    if own and isinstance(value, Lazy) and value.buffer is not None:
        ends = context.last_use.get(base) is node and context.builder.slots[value.buffer].kind == "temp"
        if node in context.in_place or ends:
            context.before_write(value.buffer, node)
            return value.buffer
    copied = context.builder.temporary(value.dtype, value.shape)
    context.builder.store(value, copied)
    return copied
