"""Index arithmetic: simplified indexes are the same numbers, and reshapes vanish."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor import ir
from executor.compiler import index

pytestmark = pytest.mark.unit

EXTENTS = (2, 3, 4)


def evaluate(expr: ir.Expr, axes: tuple[int, ...]) -> int:
    """The value of an index expression at one point."""
    match expr:
        case ir.Const(value=value):
            return int(value)
        case ir.Axis(index=axis):
            return axes[axis]
        case ir.Op(name=name, args=args):
            left, right = (evaluate(arg, axes) for arg in args)
            made = {"add": left + right, "sub": left - right, "mul": left * right}.get(
                name, left // (right or 1) if name == "idiv" else left % (right or 1)
            )
            return (made + 2**63) % 2**64 - 2**63
    raise AssertionError(expr)


def _binary(inner: st.SearchStrategy[ir.Expr]) -> st.SearchStrategy[ir.Expr]:
    constants = (st.integers(-12, 12).filter(bool) | st.sampled_from([2**61, -(2**62), 2**63 - 1])).map(index.const)
    sums = st.tuples(st.sampled_from(["add", "sub"]), inner, inner)
    others = st.tuples(st.sampled_from(["mul", "idiv", "imod"]), inner, constants)
    return (sums | others).map(lambda parts: ir.Op(parts[0], "int64", parts[1:]))


expressions = st.recursive(
    st.integers(-20, 20).map(index.const) | st.sampled_from([ir.Axis(0), ir.Axis(1), ir.Axis(2)]),
    _binary,
    max_leaves=12,
)


@given(expressions)
def test_simplifying_keeps_the_value(expr: ir.Expr) -> None:
    simple = index.Simplifier(EXTENTS)(expr)
    for point in product(*map(range, EXTENTS)):
        assert evaluate(simple, point) == evaluate(expr, point)


def test_what_may_wrap_around_keeps_its_remainder() -> None:
    simplify = index.Simplifier((16,))
    wrapped = index.remainder(index.scale(ir.Axis(0), 2**61), 7)
    assert evaluate(simplify(wrapped), (5,)) == (5 * 2**61 - 2**64) % 7
    loaded = index.quotient(index.scale(ir.Load(0, ir.Axis(0)), 4), 4)
    assert simplify(loaded) == loaded


def test_a_reshape_there_and_back_vanishes() -> None:
    axes = (ir.Axis(0), ir.Axis(1), ir.Axis(2))
    flat = index.linear(axes, index.contiguous(EXTENTS))
    other = index.delinear(flat, (6, 4))
    back = index.delinear(index.linear(other, index.contiguous((6, 4))), EXTENTS)
    simplify = index.Simplifier(EXTENTS)
    assert tuple(map(simplify, back)) == axes
    assert index.affine(simplify(index.linear(other, (4, 1))), 3) == (0, (12, 4, 1))


def test_grouping_by_a_quotient_is_recognised() -> None:
    simplify = index.Simplifier((6, 4))
    heads = index.quotient(index.add(index.scale(ir.Axis(0), 4), ir.Axis(1)), 8)
    assert simplify(heads) == index.quotient(ir.Axis(0), 2)


def test_what_is_not_affine_is_told() -> None:
    assert index.affine(index.quotient(ir.Axis(0), 2), 1) is None
    assert index.affine(index.add(index.scale(ir.Axis(0), 3), index.const(5)), 1) == (5, (3,))
