"""Lowerings of views: each is arithmetic on indexes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from executor.compiler import index as ix
from executor.compiler.lower import Context, Result, args_of, lowers, shape_of
from executor.compiler.values import Lazy, Value, expand, reshape, view

aten = torch.ops.aten


@lowers(
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims,
)  # fmt: skip
def reshaped(context: Context, node: fx.Node) -> Value:
    return reshape(context.value(args_of(node)[0]), shape_of(node))


@lowers(aten.permute.default, aten.transpose.int, aten.t.default)
def permute(context: Context, node: fx.Node) -> Value:
    base = context.lazy(args_of(node)[0])
    rank = len(base.shape)
    order = list(range(rank))
    if node.target is aten.permute.default:
        order = [axis % rank for axis in args_of(node)[1]]
    elif rank > 1:
        first, second = (axis % rank for axis in args_of(node)[1:] or (0, 1))
        order[first], order[second] = second, first
    return view(base, shape_of(node), lambda at: [at[order.index(axis)] for axis in range(rank)])


@lowers(aten.expand.default)
def expanded(context: Context, node: fx.Node) -> Value:
    base = context.value(args_of(node)[0])
    return reshape(base, shape_of(node)) if base.size == ix.size_of(shape_of(node)) else _expand(context, node)


def _expand(context: Context, node: fx.Node) -> Value:
    return expand(context.lazy(args_of(node)[0]), shape_of(node))


@lowers(aten.repeat.default)
def repeat(context: Context, node: fx.Node) -> Value:
    base, shape = context.lazy(args_of(node)[0]), shape_of(node)
    skip = len(shape) - len(base.shape)
    return view(base, shape, lambda at: [ix.remainder(i, size) for i, size in zip(at[skip:], base.shape, strict=True)])


@lowers(aten.flip.default)
def flip(context: Context, node: fx.Node) -> Value:
    base = context.lazy(args_of(node)[0])
    flipped = {axis % len(base.shape) for axis in args_of(node)[1]}

    def back(at: Any) -> list[Any]:
        ends = [size - 1 for size in base.shape]
        return [ix.add(ix.const(ends[a]), ix.scale(i, -1)) if a in flipped else i for a, i in enumerate(at)]

    return view(base, base.shape, back)


def narrowed(base: Lazy, axis: int, start: int, shape: tuple[int, ...], step: int = 1) -> Lazy:
    """`base` from `start` on along `axis`, every `step`th; the whole of it as it is."""
    if shape == base.shape:
        return base
    return view(base, shape, lambda at: [_moved(i, start, step) if a == axis else i for a, i in enumerate(at)])


def _moved(index: Any, start: int, step: int) -> Any:
    return ix.add(ix.scale(index, step), ix.const(start))


def slice_bounds(size: int, arguments: Sequence[Any]) -> tuple[int, int]:
    """(start, step) of a slice of a dimension of `size`; arguments are start, end and step, each perhaps lacking."""
    start, _, step = (*arguments, None, None, None)[:3]
    begin, _, stride = slice(start, None, step).indices(size)
    return begin, stride


@lowers(aten.slice.Tensor)
def sliced(context: Context, node: fx.Node) -> Value:
    base = context.lazy(args_of(node)[0])
    axis = int(args_of(node)[1]) % len(base.shape) if len(args_of(node)) > 1 else 0
    start, step = slice_bounds(base.shape[axis], args_of(node)[2:])
    return narrowed(base, axis, start, shape_of(node), step)


@lowers(aten.select.int)
def select(context: Context, node: fx.Node) -> Value:
    base, axis, at = context.lazy(args_of(node)[0]), args_of(node)[1], args_of(node)[2]
    axis = axis % len(base.shape)
    position = ix.const(at % base.shape[axis])
    return view(base, shape_of(node), lambda at: [*at[:axis], position, *at[axis:]])


@lowers(aten.split_with_sizes.default, aten.split.Tensor, aten.unbind.int, aten.chunk.default)
def split(context: Context, node: fx.Node) -> Result:
    """Pieces along one axis; those of unbind lose it."""
    base = context.lazy(args_of(node)[0])
    position = 1 if node.target is aten.unbind.int else 2
    axis = int(args_of(node)[position]) % len(base.shape) if len(args_of(node)) > position else 0
    pieces, start = [], 0
    for made in node.meta["val"]:
        shape = tuple(made.shape)
        full = (*shape[:axis], 1, *shape[axis:]) if position == 1 else shape
        pieces.append(reshape(narrowed(base, axis, start, full), shape))
        start += full[axis]
    return tuple(pieces)


@lowers(operator.getitem)
def getitem(context: Context, node: fx.Node) -> Value:
    source, place = args_of(node)
    made = context.values[source]
    assert isinstance(made, tuple)
    found: Value = made[place]
    return found
