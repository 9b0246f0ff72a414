"""Products as plain reductions, for operands that lie in a way that no micro-kernel takes."""

from __future__ import annotations

from dataclasses import replace

from executor import ir
from executor.compiler import index as ix
from executor.compiler.builder import numbers


def without_products(nest: ir.Nest) -> ir.Nest:
    """The nest with each Dot as a Reduce that does the same."""
    rank = len(nest.outer)
    return replace(
        nest,
        body=tuple(_reduce(statement, rank) if isinstance(statement, ir.Dot) else statement for statement in nest.body),
    )


def _reduce(dot: ir.Dot, rank: int) -> ir.Reduce:
    axes = [ir.Axis(axis) for axis in range(rank + 1)]
    simplify = ix.Simplifier([1 << 40] * (rank + 1))

    def load(operand: ir.Strided) -> ir.Expr:
        assert isinstance(operand.offset, int)
        return ir.Load(operand.buffer, simplify(ix.linear(axes, numbers(operand.strides), operand.offset)))

    return ir.Reduce("sum", (dot.extent,), ir.Op("mul", "float32", (load(dot.left), load(dot.right))), "float32")
