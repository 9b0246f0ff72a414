"""Lowerings of element-wise operations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from executor import ir
from executor.compiler.dtypes import name_of
from executor.compiler.lower import Context, args_of, dtype_of, kwargs_of, lowers, origin_of, shape_of, source_of
from executor.compiler.operations.fuse import converted, elementwise
from executor.compiler.values import Value, cast, constant
from executor.errors import UnsupportedError

aten = torch.ops.aten

FLOAT = "float32"
_BINARY = {
    "add": (aten.add.Tensor, aten.add.Scalar),
    "sub": (aten.sub.Tensor, aten.sub.Scalar),
    "mul": (aten.mul.Tensor, aten.mul.Scalar),
    "div": (aten.div.Tensor, aten.div.Scalar),
    "max": (aten.maximum.default,),
    "min": (aten.minimum.default,),
    "pow": (aten.pow.Tensor_Tensor,),
    "atan2": (aten.atan2.default,),
    "fmod": (aten.fmod.Tensor, aten.fmod.Scalar),
    "and": (aten.bitwise_and.Tensor, aten.bitwise_and.Scalar),
    "or": (aten.bitwise_or.Tensor, aten.bitwise_or.Scalar),
    "xor": (aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar),
    "shl": (aten.bitwise_left_shift.Tensor, aten.__lshift__.Scalar, aten.__lshift__.Tensor),
    "shr": (aten.bitwise_right_shift.Tensor, aten.__rshift__.Scalar, aten.__rshift__.Tensor),
}
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY = [
    "neg",
    "abs",
    "sqrt",
    "rsqrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sigmoid",
    "erf",
    "floor",
    "ceil",
    "trunc",
    "round",
    "reciprocal",
]


def op(name: str, dtype: str, *args: ir.Expr) -> ir.Op:
    """An operation on elements."""
    return ir.Op(name, dtype, args)


def number(value: float) -> ir.Const:
    """A float32 constant."""
    return ir.Const(float(value), FLOAT)


def apply(context: Context, node: fx.Node, formula: Callable[..., ir.Expr], *arguments: Any, within: str = "") -> Value:
    """`formula` of arguments (tensors or numbers) that are first converted to dtype `within` (the result's if "")."""
    dtype, origin = dtype_of(node), origin_of(node)
    within = within or dtype
    operands = [
        converted(context.builder, context.value(argument), within, origin)
        if isinstance(argument, fx.Node)
        else constant(argument, (), within)
        for argument in arguments
    ]
    return elementwise(context.builder, formula, operands, shape_of(node), dtype, origin)


def _register_binary(name: str) -> None:
    @lowers(*_BINARY[name])
    def binary(context: Context, node: fx.Node) -> Value:
        dtype = dtype_of(node)
        left, right, *_ = args_of(node)
        if "alpha" in kwargs_of(node):
            alpha = ir.Const(kwargs_of(node)["alpha"], dtype)
            return apply(context, node, lambda x, y: op(name, dtype, x, op("mul", dtype, y, alpha)), left, right)
        return apply(context, node, lambda x, y: op(name, dtype, x, y), left, right)


def _register_comparison(name: str) -> None:
    @lowers(getattr(aten, name).Tensor, getattr(aten, name).Scalar)
    def compare(context: Context, node: fx.Node) -> Value:
        left, right = args_of(node)[:2]
        return apply(
            context, node, lambda x, y: op(name, "bool", x, y), left, right, within=promoted(node, left, right)
        )


def _register_unary(name: str) -> None:
    @lowers(getattr(aten, name).default)
    def unary(context: Context, node: fx.Node) -> Value:
        dtype = dtype_of(node)
        return apply(context, node, lambda x: op(name, dtype, x), args_of(node)[0])


for _name in _BINARY:
    _register_binary(_name)
for _name in _COMPARISONS:
    _register_comparison(_name)
for _name in _UNARY:
    _register_unary(_name)


def promoted(node: fx.Node, *arguments: Any) -> str:
    """The dtype in which torch compares or combines arguments."""
    values = [argument.meta["val"] if isinstance(argument, fx.Node) else argument for argument in arguments]
    return name_of(torch.result_type(*values), source_of(node))


@lowers(aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default)
def logical(context: Context, node: fx.Node) -> Value:
    name = str(node.target).removeprefix("aten.logical_").removesuffix(".default")
    return apply(context, node, lambda x, y: op(name, "bool", x, y), *args_of(node))


@lowers(aten.logical_not.default)
def logical_not(context: Context, node: fx.Node) -> Value:
    return apply(context, node, lambda x: op("not", "bool", x), args_of(node)[0])


@lowers(aten.bitwise_not.default)
def bitwise_not(context: Context, node: fx.Node) -> Value:
    return apply(context, node, lambda x: op("not", dtype_of(node), x), args_of(node)[0])


@lowers(aten.sign.default)
def sign(context: Context, node: fx.Node) -> Value:
    return apply(context, node, lambda x: op("sign", dtype_of(node), x), args_of(node)[0])


@lowers(aten.isnan.default)
def isnan(context: Context, node: fx.Node) -> Value:
    return apply(context, node, lambda x: op("isnan", "bool", x), args_of(node)[0], within=FLOAT)


@lowers(aten.isinf.default)
def isinf(context: Context, node: fx.Node) -> Value:
    formula = lambda x: op("eq", "bool", op("abs", FLOAT, x), number(math.inf))  # noqa: E731
    return apply(context, node, formula, args_of(node)[0], within=FLOAT)


@lowers(aten.rsub.Scalar, aten.rsub.Tensor)
def rsub(context: Context, node: fx.Node) -> Value:
    return apply(context, node, lambda x, y: op("sub", dtype_of(node), y, x), *args_of(node)[:2])


@lowers(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(context: Context, node: fx.Node) -> Value:
    dtype = dtype_of(node)

    def of_floats(x: ir.Expr, y: ir.Expr) -> ir.Expr:
        rest, zero = op("fmod", dtype, x, y), number(0)
        other_sign = op("ne", "bool", op("lt", "bool", rest, zero), op("lt", "bool", y, zero))
        wrong = op("and", "bool", op("ne", "bool", rest, zero), other_sign)
        return op("where", dtype, wrong, op("add", dtype, rest, y), rest)

    formula = of_floats if dtype == FLOAT else lambda x, y: op("imod", dtype, x, y)
    return apply(context, node, formula, *args_of(node)[:2])


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default)
def divide(context: Context, node: fx.Node) -> Value:
    dtype, mode = dtype_of(node), kwargs_of(node).get("rounding_mode", "floor")

    def formula(x: ir.Expr, y: ir.Expr) -> ir.Expr:
        if dtype != FLOAT:
            return op("idiv" if mode == "floor" else "trunc_div", dtype, x, y)
        exact = op("div", dtype, x, y)
        return _floored(x, y) if mode == "floor" else op(mode, dtype, exact) if mode else exact

    return apply(context, node, formula, *args_of(node)[:2])


def _floored(x: ir.Expr, y: ir.Expr) -> ir.Expr:
    """The whole number below x / y, by way of the exact remainder: x / y itself may round up to the one above."""
    rest, zero = op("fmod", FLOAT, x, y), number(0)
    other_sign = op("ne", "bool", op("lt", "bool", rest, zero), op("lt", "bool", y, zero))
    below = op("and", "bool", op("ne", "bool", rest, zero), other_sign)
    whole = op("div", FLOAT, op("sub", FLOAT, x, rest), y)
    exact = op("round", FLOAT, op("where", FLOAT, below, op("sub", FLOAT, whole, number(1)), whole))
    return op("where", FLOAT, op("eq", "bool", y, zero), op("div", FLOAT, x, y), exact)


@lowers(aten.pow.Tensor_Scalar)
def power(context: Context, node: fx.Node) -> Value:
    dtype, exponent = dtype_of(node), args_of(node)[1]
    known: dict[Any, Callable[[ir.Expr], ir.Expr]] = {
        1: lambda x: x,
        2: lambda x: op("mul", dtype, x, x),
        3: lambda x: op("mul", dtype, op("mul", dtype, x, x), x),
        0.5: lambda x: op("sqrt", dtype, x),
        -0.5: lambda x: op("rsqrt", dtype, x),
        -1: lambda x: op("reciprocal", dtype, x),
    }
    if exponent in known and (dtype == FLOAT or exponent in (1, 2, 3)):
        return apply(context, node, known[exponent], args_of(node)[0])
    if dtype != FLOAT:
        raise UnsupportedError(f"an integer to the power {exponent}", source_of(node), "convert it to float32 first")
    return apply(context, node, lambda x, y: op("pow", dtype, x, y), args_of(node)[0], exponent)


@lowers(aten.pow.Scalar)
def power_of_number(context: Context, node: fx.Node) -> Value:
    return apply(context, node, lambda x, y: op("pow", dtype_of(node), x, y), *args_of(node), within=FLOAT)


@lowers(aten.where.self)
def where(context: Context, node: fx.Node) -> Value:
    dtype, origin, builder = dtype_of(node), origin_of(node), context.builder
    condition = converted(builder, context.value(args_of(node)[0]), "bool", origin)
    branches = [converted(builder, context.operand(argument, node), dtype, origin) for argument in args_of(node)[1:]]
    formula = lambda c, x, y: op("where", dtype, c, x, y)  # noqa: E731
    return elementwise(builder, formula, [condition, *branches], shape_of(node), dtype, origin)


@lowers(aten.relu.default)
def relu(context: Context, node: fx.Node) -> Value:
    dtype = dtype_of(node)
    return apply(context, node, lambda x: op("max", dtype, x, cast(number(0), FLOAT, dtype)), args_of(node)[0])


@lowers(aten.silu.default)
def silu(context: Context, node: fx.Node) -> Value:
    return apply(context, node, lambda x: op("mul", FLOAT, x, op("sigmoid", FLOAT, x)), args_of(node)[0])


@lowers(aten.gelu.default)
def gelu(context: Context, node: fx.Node) -> Value:
    def exact(x: ir.Expr) -> ir.Expr:
        return op("add", FLOAT, op("erf", FLOAT, op("mul", FLOAT, x, number(math.sqrt(0.5)))), number(1))

    def by_tanh(x: ir.Expr) -> ir.Expr:
        cube = op("mul", FLOAT, op("mul", FLOAT, x, x), op("mul", FLOAT, x, number(0.044715)))
        inner = op("mul", FLOAT, op("add", FLOAT, x, cube), number(math.sqrt(2 / math.pi)))
        return op("add", FLOAT, op("tanh", FLOAT, inner), number(1))

    factor = by_tanh if kwargs_of(node).get("approximate") == "tanh" else exact
    return apply(
        context, node, lambda x: op("mul", FLOAT, op("mul", FLOAT, x, number(0.5)), factor(x)), args_of(node)[0]
    )


@lowers(aten.leaky_relu.default)
def leaky_relu(context: Context, node: fx.Node) -> Value:
    slope = number(args_of(node)[1] if len(args_of(node)) > 1 else 0.01)

    def formula(x: ir.Expr) -> ir.Expr:
        return op("where", FLOAT, op("lt", "bool", x, number(0)), op("mul", FLOAT, x, slope), x)

    return apply(context, node, formula, args_of(node)[0])


@lowers(aten.elu.default)
def elu(context: Context, node: fx.Node) -> Value:
    given = args_of(node)[1:]
    alpha, scale, input_scale = (given[place] if place < len(given) else 1.0 for place in range(3))

    def formula(x: ir.Expr) -> ir.Expr:
        below = op("mul", FLOAT, op("expm1", FLOAT, op("mul", FLOAT, x, number(input_scale))), number(alpha))
        return op("mul", FLOAT, op("where", FLOAT, op("gt", "bool", x, number(0)), x, below), number(scale))

    return apply(context, node, formula, args_of(node)[0])


@lowers(aten.clamp.default, aten.clamp.Tensor, aten.hardtanh.default)
def clamp(context: Context, node: fx.Node) -> Value:
    dtype = dtype_of(node)
    preset: tuple[Any, Any] = (-1.0, 1.0) if node.target is aten.hardtanh.default else (None, None)
    given: tuple[Any, ...] = (*args_of(node)[1:], *preset[len(args_of(node)) - 1 :])
    low, high = kwargs_of(node).get("min", given[0]), kwargs_of(node).get("max", given[1])
    if low is None:
        return apply(context, node, lambda x, y: op("min", dtype, x, y), args_of(node)[0], high)
    if high is None:
        return apply(context, node, lambda x, y: op("max", dtype, x, y), args_of(node)[0], low)
    return apply(
        context, node, lambda x, y, z: op("min", dtype, op("max", dtype, x, y), z), args_of(node)[0], low, high
    )


@lowers(
    aten._to_copy.default, aten.clone.default, aten.alias.default, aten.lift_fresh_copy.default, aten.detach.default
)
def copied(context: Context, node: fx.Node) -> Value:
    return converted(context.builder, context.value(args_of(node)[0]), dtype_of(node), origin_of(node))


@lowers(aten.copy.default)
def copy(context: Context, node: fx.Node) -> Value:
    return apply(context, node, lambda x: x, args_of(node)[1])
