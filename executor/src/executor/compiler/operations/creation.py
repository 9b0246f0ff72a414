"""Lowerings of tensors out of nothing: they are formulas of their indexes."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from executor import ir
from executor.compiler import index as ix
from executor.compiler.lower import Context, Result, args_of, dtype_of, lowers, shape_of
from executor.compiler.values import Lazy, Value, cast, constant

aten = torch.ops.aten


@lowers(aten.full.default, aten.full_like.default, aten.scalar_tensor.default, aten.fill.Scalar)
def full(context: Context, node: fx.Node) -> Value:
    value: Any = args_of(node)[0 if node.target is aten.scalar_tensor.default else 1]
    return constant(value, shape_of(node), dtype_of(node))


@lowers(
    aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.empty.memory_format,
    aten.empty_like.default, aten.new_empty.default,
)  # fmt: skip
def zeros(context: Context, node: fx.Node) -> Value:
    return constant(0, shape_of(node), dtype_of(node))


@lowers(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(context: Context, node: fx.Node) -> Value:
    return constant(1, shape_of(node), dtype_of(node))


@lowers(aten.arange.start_step)
def arange(context: Context, node: fx.Node) -> Value:
    start, step = args_of(node)[0], args_of(node)[2] if len(args_of(node)) > 2 else 1
    dtype = dtype_of(node)
    if isinstance(start, int) and isinstance(step, int):
        return Lazy(
            shape_of(node),
            dtype,
            lambda at: cast(ix.linear(at, [step], start), "int64", dtype),
        )
    first, by = ir.Const(float(start), dtype), ir.Const(float(step), dtype)
    return Lazy(
        shape_of(node),
        dtype,
        lambda at: ir.Op("add", dtype, (first, ir.Op("mul", dtype, (cast(at[0], "int64", dtype), by)))),
    )


@lowers(aten._assert_tensor_metadata.default, aten._assert_async.msg)
def nothing(context: Context, node: fx.Node) -> Result:
    return ()
