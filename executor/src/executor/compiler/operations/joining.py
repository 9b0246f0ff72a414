"""Lowerings that put tensors together: each piece is computed right into its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from executor import ir
from executor.compiler import index as ix
from executor.compiler.lower import Context, args_of, dtype_of, lowers, origin_of, shape_of, whole_of
from executor.compiler.operations.fuse import converted
from executor.compiler.values import Indexes, Value, constant, reshape, view

aten = torch.ops.aten


@lowers(aten.cat.default, aten.stack.default)
def cat(context: Context, node: fx.Node) -> Value:
    shape, dtype, origin = shape_of(node), dtype_of(node), origin_of(node)
    axis = int(args_of(node)[1]) % len(shape) if len(args_of(node)) > 1 else 0
    made, start = context.builder.temporary(dtype, shape), 0
    for argument in args_of(node)[0]:
        piece = converted(context.builder, context.value(argument), dtype, origin)
        if node.target is aten.stack.default:
            piece = reshape(piece, (*piece.shape[:axis], 1, *piece.shape[axis:]))
        if piece.size:
            _put(context, piece, made, shape, [start if other == axis else 0 for other in range(len(shape))])
            start += piece.shape[axis]
    return whole_of(context.builder, made)


@lowers(aten.constant_pad_nd.default)
def pad(context: Context, node: fx.Node) -> Value:
    shape, dtype = shape_of(node), dtype_of(node)
    given: Sequence[Any] = args_of(node)[1]
    before = [0] * (len(shape) - len(given) // 2) + list(given[::2])[::-1]
    after = [0] * (len(shape) - len(given) // 2) + list(given[1::2])[::-1]
    base = context.lazy(args_of(node)[0])
    kept = tuple(size + min(low, 0) + min(high, 0) for size, low, high in zip(base.shape, before, after, strict=True))
    cut = [max(-low, 0) for low in before]
    inner = view(base, kept, lambda at: [ix.add(i, ix.const(c)) for i, c in zip(at, cut, strict=True)])
    made = context.builder.temporary(dtype, shape)
    filler = args_of(node)[2] if len(args_of(node)) > 2 else 0
    context.builder.store(constant(filler, shape, dtype), made)
    _put(context, inner, made, shape, [max(low, 0) for low in before])
    return whole_of(context.builder, made)


def _put(context: Context, piece: Value, buffer: int, shape: tuple[int, ...], start: list[int]) -> None:
    """Store a piece with its first element at `start`."""
    strides = ix.contiguous(shape)

    def place(at: Indexes) -> ir.Expr:
        return ix.linear([ix.add(i, ix.const(s)) for i, s in zip(at, start, strict=True)], strides)

    context.builder.store(piece, buffer, place)
