"""Lowerings of matrix products: sums over elements that lie at regular strides, with whatever follows on top."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import fx

from executor import ir
from executor.compiler import index as ix
from executor.compiler.lower import Context, args_of, dtype_of, kwargs_of, lowers, origin_of, shape_of, source_of
from executor.compiler.operations.elementwise import FLOAT, number, op
from executor.compiler.operations.fuse import elementwise
from executor.compiler.values import Indexes, Lazy, Pending, Shape, Value, expand, reshape, view
from executor.errors import UnsupportedError

aten = torch.ops.aten


@lowers(aten.mm.default, aten.bmm.default)
def matrix_product(context: Context, node: fx.Node) -> Value:
    return contract(context, node, args_of(node)[0], args_of(node)[1])


@lowers(aten.mv.default, aten.dot.default)
def vector_product(context: Context, node: fx.Node) -> Value:
    return contract(context, node, args_of(node)[0], args_of(node)[1])


@lowers(aten.addmm.default, aten.baddbmm.default)
def add_product(context: Context, node: fx.Node) -> Value:
    """beta * bias + alpha * (left @ right)"""
    made = contract(context, node, args_of(node)[1], args_of(node)[2])
    alpha, beta = (kwargs_of(node).get(name, 1) for name in ("alpha", "beta"))

    def formula(product: ir.Expr, bias: ir.Expr) -> ir.Expr:
        product = product if alpha == 1 else op("mul", FLOAT, product, number(alpha))
        bias = bias if beta == 1 else op("mul", FLOAT, bias, number(beta))
        return op("add", FLOAT, product, bias)

    operands = [made, context.value(args_of(node)[0])]
    return elementwise(context.builder, formula, operands, shape_of(node), FLOAT, origin_of(node))


@lowers(aten.matmul.default)
def matmul(context: Context, node: fx.Node) -> Value:
    """Leading dimensions are broadcast; a vector is a row on the left, a column on the right."""
    left, right = (_plain(context, argument) for argument in args_of(node))
    rows = left if len(left.shape) > 1 else reshape(left, (1, *left.shape))
    columns = right if len(right.shape) > 1 else reshape(right, (*right.shape, 1))
    batch = np.broadcast_shapes(rows.shape[:-2], columns.shape[:-2])
    first, second = (expand(operand, (*batch, *operand.shape[-2:])) for operand in (rows, columns))
    made = product(context, node, first, second, (*batch, first.shape[-2], second.shape[-1]))
    return reshape(made, shape_of(node))


@lowers(aten.linear.default)
def linear(context: Context, node: fx.Node) -> Value:
    """x @ weight.T + bias, with whatever leads in x as rows."""
    base, weight = (_plain(context, argument) for argument in args_of(node)[:2])
    columns, extent = weight.shape
    rows = ix.size_of(base.shape[:-1])
    transposed = view(weight, (extent, columns), lambda at: [at[1], at[0]])
    made = product(context, node, reshape(base, (rows, extent)), transposed, (rows, columns))
    if len(args_of(node)) < 3 or args_of(node)[2] is None:
        return reshape(made, shape_of(node))
    operands = [reshape(made, shape_of(node)), context.value(args_of(node)[2])]
    return elementwise(
        context.builder, lambda x, y: op("add", FLOAT, x, y), operands, shape_of(node), FLOAT, origin_of(node)
    )


def contract(context: Context, node: fx.Node, left: fx.Node, right: fx.Node) -> Pending:
    """left[…, m, k] @ right[…, k, n] with equal leading dimensions; a vector has no m, or no n."""
    return product(context, node, _plain(context, left), _plain(context, right), shape_of(node))


def product(context: Context, node: fx.Node, first: Lazy, second: Lazy, shape: Shape) -> Pending:
    """The sums over the last axis of `first` and the one of `second` that goes with it, of `shape`."""
    if dtype_of(node) != FLOAT:
        raise UnsupportedError(f"a matrix product of {dtype_of(node)}", source_of(node), "convert it to float32 first")
    extent, rows = first.shape[-1], len(first.shape) > 1
    batch = max(len(first.shape) - 2, 0)
    axes = [ir.Axis(axis) for axis in range(len(shape) + 1)]
    at = ([*axes[: batch + rows], axes[-1]], [*axes[:batch], axes[-1], *axes[batch + rows : -1]])
    domain, dot = _regular(first, second, at, shape, extent)
    if dot is None:
        # The left one is most often an activation, and small; the right one may be a weight.
        first = context.builder.realise(first)
        domain, dot = _regular(first, second, at, shape, extent)
    if dot is None:
        domain, dot = _regular(first, context.builder.realise(second), at, shape, extent)
    assert dot is not None, "operands in memory are regular"
    dot = _by_rows(context, dot, domain)
    reads = frozenset([dot.left.buffer, dot.right.buffer])
    return Pending(shape, FLOAT, domain, (dot,), ir.Local(0), reads, origin_of(node))


def _plain(context: Context, argument: fx.Node) -> Lazy:
    """An operand that is elements of one buffer; anything else goes into memory."""
    value = context.value(argument)
    return value if isinstance(value, Lazy) and value.cost == 0 else context.realised(argument)


def _regular(
    first: Lazy, second: Lazy, at: tuple[Indexes, Indexes], shape: Shape, extent: int
) -> tuple[Shape, ir.Dot | None]:
    """The product over a domain whose axes are split until both operands lie at regular strides; None if none does."""
    domain, elements = shape, [first.at(at[0]), second.at(at[1])]
    while True:
        simplify = ix.Simplifier((*domain, extent))
        elements = [simplify(element) for element in elements]
        left, right = (_strided(element, len(domain) + 1) for element in elements)
        if left and right:
            return domain, ir.Dot(extent, left, right)
        split = next((found for element in elements for found in _splits(element, domain)), None)
        if split is None:
            return domain, None
        axis, inner = split
        domain = (*domain[:axis], domain[axis] // inner, inner, *domain[axis + 1 :])
        elements = [ix.substitute(element, _renumbering(axis, inner, len(domain))) for element in elements]


def _strided(element: ir.Expr, axes: int) -> ir.Strided | None:
    if isinstance(element, ir.Load) and (found := ix.affine(element.index, axes)):
        return ir.Strided(element.buffer, *found)
    return None


def _splits(element: ir.Expr, domain: Shape) -> Iterator[tuple[int, int]]:
    """(axis, inner size) of the axes that a quotient or remainder of themselves alone calls to split."""
    for expr in ir.walk(element):
        match expr:
            case ir.Op(name="idiv" | "imod", args=(ir.Axis(index=axis), ir.Const(value=int() as inner))):
                if axis < len(domain) and domain[axis] % inner == 0 and 1 < inner < domain[axis]:
                    yield axis, inner


def _renumbering(axis: int, inner: int, rank: int) -> dict[ir.Expr, ir.Expr]:
    """Axis `axis` as an outer and an inner one, those after it one further."""
    joined = ix.add(ix.scale(ir.Axis(axis), inner), ir.Axis(axis + 1))
    return {ir.Axis(axis): joined, **{ir.Axis(other): ir.Axis(other + 1) for other in range(axis + 1, rank + 1)}}


def _by_rows(context: Context, dot: ir.Dot, domain: Shape) -> ir.Dot:
    """The same with a constant right operand laid out anew, where it is streamed for few rows of the left one.

    Then each element of the result reads memory in order, which is as fast as memory goes.
    """
    right, few = dot.right, 8
    slot = context.builder.slots[right.buffer]
    columns = [axis for axis, stride in enumerate(right.strides[:-1]) if stride]
    rows = ix.size_of([size for axis, size in enumerate(domain) if axis not in columns])
    plain = len(slot.shape) == 2 and right.offset == 0 and [right.strides[axis] for axis in columns] == [1]
    if (
        context.transposed is None
        or slot.kind != "weight"
        or not plain
        or right.strides[-1] != slot.shape[1]
        or rows > few
    ):
        return dot
    (axis,) = columns
    strides = tuple(slot.shape[0] if other == axis else 0 for other in range(len(domain)))
    return replace(dot, right=ir.Strided(context.transposed(right.buffer), 0, (*strides, 1)))
