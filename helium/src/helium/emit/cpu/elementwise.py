"""Elementwise instructions on scalars or vectors in registers."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from helium import dtypes
from helium.emit.cpu import polynomials
from helium.emit.cpu.code import F32, I16, I32, REGISTER, Code, V
from helium.types import DType

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = frozenset({"bool", "uint8"})


def literal(c: Code, value: float | int, dtype: DType) -> V:
    """A constant in register form; of bfloat16 its bits, rounded to nearest even."""
    if dtype != "bfloat16":
        return c.const(REGISTER[dtype], value)
    bits = int(struct.unpack("<I", struct.pack("<f", value))[0])
    return c.const(I16, 0x7FC0 if value != value else (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


def unary(c: Code, op: str, x: V, dtype: DType) -> V:
    """One of the IR's operations of one operand."""
    if op == "not":
        return c.b.not_(x)
    if not dtypes.is_float(dtype):
        return _unary_integer(c, op, x, dtype)
    simple: dict[str, Callable[[], V]] = {
        "neg": lambda: c.b.fneg(x),
        "abs": lambda: c.map("fabs", x),
        "sqrt": lambda: c.map("sqrt", x),
        "rsqrt": lambda: c.b.fdiv(c.const(x.type, 1.0), c.map("sqrt", x)),
        "floor": lambda: c.map("floor", x),
        "ceil": lambda: c.map("ceil", x),
        "round": lambda: c.map("rint", x),
        "exp": lambda: polynomials.exp(c, x),
        "log": lambda: polynomials.log(c, x),
        "tanh": lambda: polynomials.tanh(c, x),
        "erf": lambda: polynomials.erf(c, x),
        "sin": lambda: polynomials.sine(c, x, 0),
        "cos": lambda: polynomials.sine(c, x, 1),
    }
    return simple[op]()


def _unary_integer(c: Code, op: str, x: V, dtype: DType) -> V:
    if op == "neg":
        return c.b.neg(x)
    if op == "abs" and dtype not in _UNSIGNED:
        return c.b.select(c.b.icmp_signed("<", x, c.const(x.type, 0)), c.b.neg(x), x)
    return x


def binary(c: Code, op: str, a: V, b: V, dtype: DType) -> V:
    """One of the IR's arithmetic operations."""
    if dtypes.is_float(dtype):
        return _binary_float(c, op, a, b)
    return _binary_integer(c, op, a, b, dtype)


def _binary_float(c: Code, op: str, a: V, b: V) -> V:
    if op == "floordiv":
        return c.map("floor", c.b.fdiv(a, b))
    if op == "mod":
        return c.b.fsub(a, c.b.fmul(c.map("floor", c.b.fdiv(a, b)), b))
    simple: dict[str, Callable[[], V]] = {
        "add": lambda: c.b.fadd(a, b, flags=("contract",)),
        "sub": lambda: c.b.fsub(a, b, flags=("contract",)),
        "mul": lambda: c.b.fmul(a, b, flags=("contract",)),
        "div": lambda: c.b.fdiv(a, b),
        "max": lambda: c.map("maximum", a, b),
        "min": lambda: c.map("minimum", a, b),
        "pow": lambda: polynomials.power(c, a, b),
    }
    return simple[op]()


def _binary_integer(c: Code, op: str, a: V, b: V, dtype: DType) -> V:
    if op in ("floordiv", "mod"):
        return _floored(c, op, a, b, dtype)
    compare = c.b.icmp_unsigned if dtype in _UNSIGNED else c.b.icmp_signed
    simple: dict[str, Callable[[], V]] = {
        "add": lambda: c.b.or_(a, b) if dtype == "bool" else c.b.add(a, b),
        "sub": lambda: c.b.sub(a, b),
        "mul": lambda: c.b.mul(a, b),
        "max": lambda: c.b.select(compare(">", a, b), a, b),
        "min": lambda: c.b.select(compare("<", a, b), a, b),
        "and": lambda: c.b.and_(a, b),
        "or": lambda: c.b.or_(a, b),
        "xor": lambda: c.b.xor(a, b),
    }
    return simple[op]()


def _floored(c: Code, op: str, a: V, b: V, dtype: DType) -> V:
    """Division that rounds down; by zero it gives what division by one does, so that no lane traps."""
    zero, one = c.const(a.type, 0), c.const(a.type, 1)
    b = c.b.select(c.b.icmp_signed("==", b, zero), one, b)
    if dtype in _UNSIGNED:
        return c.b.udiv(a, b) if op == "floordiv" else c.b.urem(a, b)
    quotient, rest = c.b.sdiv(a, b), c.b.srem(a, b)
    wrong = c.b.and_(c.b.icmp_signed("!=", rest, zero), c.b.icmp_signed("<", c.b.xor(rest, b), zero))
    if op == "floordiv":
        return c.b.select(wrong, c.b.sub(quotient, one), quotient)
    return c.b.select(wrong, c.b.add(rest, b), rest)


def compare(c: Code, op: str, a: V, b: V, dtype: DType) -> V:
    """A comparison; IEEE on floats."""
    sign = _SIGNS[op]
    if dtypes.is_float(dtype):
        return c.b.fcmp_unordered(sign, a, b) if op == "ne" else c.b.fcmp_ordered(sign, a, b)
    return c.b.icmp_unsigned(sign, a, b) if dtype in _UNSIGNED else c.b.icmp_signed(sign, a, b)


def cast(c: Code, x: V, source: DType, target: DType) -> V:
    """Convert between dtypes as the IR says."""
    if source == target:
        return x
    if source in dtypes.HALVES:
        return cast(c, _widen(c, x, source), "float32", target)
    if target in dtypes.HALVES:
        return _narrow(c, cast(c, x, source, "float32"), target)
    kind = c.like(x.type, REGISTER[target])
    if target == "bool":
        zero = c.const(x.type, 0)
        return c.b.fcmp_unordered("!=", x, zero) if dtypes.is_float(source) else c.b.icmp_signed("!=", x, zero)
    if dtypes.is_float(source):
        return _from_float(c, x, source, target, kind)
    if dtypes.is_float(target):
        return c.b.uitofp(x, kind) if source in _UNSIGNED else c.b.sitofp(x, kind)
    if dtypes.BYTES[target] <= dtypes.BYTES[source] and source != "bool":
        return c.b.trunc(x, kind) if dtypes.BYTES[target] < dtypes.BYTES[source] else x
    return c.b.zext(x, kind) if source in _UNSIGNED else c.b.sext(x, kind)


def _from_float(c: Code, x: V, source: DType, target: DType, kind: V) -> V:
    if target == "float64":
        return c.b.fpext(x, kind)
    if target == "float32":
        return c.b.fptrunc(x, kind)
    return c.intrinsic("fptoui.sat" if target == "uint8" else "fptosi.sat", [x], kind, [kind, x.type])


def _widen(c: Code, x: V, source: DType) -> V:
    if source == "float16":
        return c.b.fpext(x, c.like(x.type, F32))
    wide = c.like(x.type, I32)
    return c.b.bitcast(c.b.shl(c.b.zext(x, wide), c.const(wide, 16)), c.like(x.type, F32))


def _narrow(c: Code, x: V, target: DType) -> V:
    if target == "float16":
        return c.b.fptrunc(x, c.like(x.type, REGISTER["float16"]))
    wide = c.like(x.type, I32)
    bits = c.b.bitcast(x, wide)
    odd = c.b.and_(c.b.lshr(bits, c.const(wide, 16)), c.const(wide, 1))
    rounded = c.b.add(bits, c.b.add(odd, c.const(wide, 0x7FFF)))
    is_nan = c.b.fcmp_unordered("uno", x, x)
    rounded = c.b.select(is_nan, c.const(wide, 0x7FC00000), rounded)
    return c.b.trunc(c.b.lshr(rounded, c.const(wide, 16)), c.like(x.type, I16))


def identity(op: str, dtype: DType) -> float | int:
    """The result of folding nothing."""
    if op in ("sum", "prod"):
        return int(op == "prod") if not dtypes.is_float(dtype) else float(op == "prod")
    if dtypes.is_float(dtype):
        return -math.inf if op == "max" else math.inf
    if dtype == "bool":
        return int(op == "min")
    bits = dtypes.BYTES[dtype] * 8
    low, high = (0, 2**bits - 1) if dtype in _UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return low if op == "max" else high


def fold(c: Code, op: str, a: V, b: V, dtype: DType) -> V:
    """One step of a reduction."""
    return binary(c, {"sum": "add", "prod": "mul"}.get(op, op), a, b, dtype)


def fold_lanes(c: Code, op: str, vector: V, dtype: DType) -> V:
    """A vector folded to a scalar, by halves."""
    lanes = vector.type.count
    while lanes > 1:
        lanes //= 2
        low = c.shuffle(vector, vector, range(lanes))
        high = c.shuffle(vector, vector, range(lanes, 2 * lanes))
        vector = fold(c, op, low, high, dtype)
    return c.b.extract_element(vector, c.const(I32, 0))
