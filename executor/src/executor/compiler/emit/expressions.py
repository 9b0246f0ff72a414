"""Expressions as C: each distinct one becomes a constant, declared in the outermost loop that it can be.

bool values are int32_t between load and store, so that comparisons of floats vectorise without changes of width.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from executor import ir
from executor.compiler.builder import numbers

C_TYPES = {"float32": "float", "int64": "int64_t", "int32": "int32_t", "uint8": "uint8_t", "bool": "int32_t"}
STORED = {**C_TYPES, "bool": "uint8_t"}

_MOST = 2**63 - 1

_INFIX = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FLOAT_CALLS = {
    "sqrt": "sqrtf", "log": "logf", "log1p": "log1pf", "log2": "log2f", "exp2": "exp2f", "expm1": "expm1f",
    "sin": "sinf", "cos": "cosf", "tan": "tanf", "floor": "floorf", "ceil": "ceilf", "trunc": "truncf",
    "round": "rintf", "pow": "powf", "atan2": "atan2f", "fmod": "fmodf", "exp": "edge_exp",
    "tanh": "edge_tanh", "erf": "edge_erf", "sigmoid": "edge_sigmoid",
}  # fmt: skip


def literal(value: bool | int | float, dtype: str) -> str:
    """A C constant that is exactly `value` in `dtype`."""
    if dtype == "int64" and value == -(2**63):
        return "INT64_MIN"  # C has no negative constants, and 2**63 is none of int64
    if dtype != "float32":
        return f"INT64_C({int(value)})" if dtype == "int64" and abs(int(value)) > 2**31 - 1 else str(int(value))
    value = float(value)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value) or abs(value) > 3.4028235677973366e38:
        return "INFINITY" if value > 0 else "(-INFINITY)"
    (single,) = struct.unpack("<f", struct.pack("<f", value))
    return f"({single.hex()}f)" if single < 0 else f"{single.hex()}f"


@dataclass(slots=True)
class Place:
    """Where declarations go: the lines of one loop level. `depth` is how many loops are around it."""

    depth: int
    lines: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Writer:
    """Writes the expressions of one nest.

    `places` are the levels of the outer loops, and `volatile` the buffers that the nest stores to, whose loads stay
    where they are. A statement opens its own place with `inside`.
    """

    nest: ir.Nest
    places: list[Place]
    volatile: frozenset[int]
    names: dict[int, str] = field(default_factory=dict)
    fails: bool = False
    _numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    _known: dict[int, tuple[ir.Expr, int]] = field(default_factory=dict)
    _declared: dict[int, str] = field(default_factory=dict)
    _depths: dict[int, int] = field(default_factory=dict)
    _count: int = 0

    def inside(self, place: Place) -> Inner:
        """A writer of one statement's expressions, into `place` where they cannot go further out."""
        return Inner(self, place)

    def number(self, expr: ir.Expr) -> int:
        """Equal for equal expressions."""
        known = self._known.get(id(expr))
        if known is None:
            shape = _shape(expr)
            key = (*shape, *(self.number(child) for child in ir.children(expr)))
            known = self._known[id(expr)] = (expr, self._numbers.setdefault(key, len(self._numbers)))
        return known[1]

    def depth(self, expr: ir.Expr) -> int:
        """How many outer loops must be around `expr`; more than there are where it depends on what statements do."""
        number = self.number(expr)
        if number not in self._depths:
            moving = isinstance(expr, ir.Local) or (isinstance(expr, ir.Load) and expr.buffer in self.volatile)
            own = len(self.places) if moving else expr.index + 1 if isinstance(expr, ir.Axis) else 0
            self._depths[number] = max(own, *map(self.depth, ir.children(expr)), 0)
        return self._depths[number]

    def fresh(self) -> str:
        """A new name."""
        self._count += 1
        return f"v{self._count}"


def _shape(expr: ir.Expr) -> tuple[object, ...]:
    match expr:
        case ir.Op(name=name, dtype=dtype):
            return ("op", name, dtype)
        case ir.Load(buffer=buffer):
            return ("load", buffer)
        case ir.Check(size=size, wrap=wrap, code=code):
            return ("check", size, wrap, code)
        case ir.Const(value=value, dtype=dtype):
            return ("const", literal(value, dtype), dtype)
    return (expr,)


@dataclass(slots=True)
class Inner:
    """Writes one statement's expressions."""

    writer: Writer
    place: Place
    _own: dict[int, str] = field(default_factory=dict)

    def __call__(self, expr: ir.Expr) -> str:
        """The C of `expr`, declared where it belongs."""
        match expr:
            case ir.Const(value=value, dtype=dtype):
                return literal(value, dtype)
            case ir.Axis(index=axis):
                return f"i{axis}"
            case ir.Local(index=index):
                return self.writer.names[index]
        number = self.writer.number(expr)
        found = self._own.get(number) or self.writer._declared.get(number)
        if found is None:
            place = self._level(expr)
            found = self._declare(expr, self if place is self.place else Inner(self.writer, place))
            (self._own if place is self.place else self.writer._declared)[number] = found
        return found

    def _level(self, expr: ir.Expr) -> Place:
        """The outermost place where everything that `expr` needs is there."""
        depth = self.writer.depth(expr)
        return self.writer.places[depth] if depth < len(self.writer.places) else self.place

    def _declare(self, expr: ir.Expr, inner: Inner) -> str:
        dtype = ir.dtype_of(expr, self.writer.nest)
        text = inner._text(expr)
        name = self.writer.fresh()
        inner.place.lines.append(f"const {C_TYPES[dtype]} {name} = {text};")
        if isinstance(expr, ir.Check):
            self.writer.fails = True
            inner.place.lines.append(f"if ((uint64_t){name} >= (uint64_t){expr.size}) return {expr.code};")
        return name

    def _text(self, expr: ir.Expr) -> str:
        match expr:
            case ir.Load(buffer=buffer, index=index):
                return f"b{buffer}[{self(index)}]"
            case ir.Check(value=value, size=size, wrap=wrap):
                at = self(value)
                return f"{at} < 0 ? {at} + {size} : {at}" if wrap else at
            case ir.Op():
                return operation(expr, self.writer.nest, [self(arg) for arg in expr.args])
        raise AssertionError(expr)


def operation(expr: ir.Op, nest: ir.Nest, args: Sequence[str]) -> str:
    """The C of one operation of the loop IR on arguments given as C."""
    name, dtype = expr.name, expr.dtype
    given = ir.dtype_of(expr.args[0], nest)
    floats = given == "float32"
    if name in _INFIX:
        return _narrow(dtype, f"{args[0]} {_INFIX[name]} {args[1]}")
    if name in _COMPARE:
        return f"{args[0]} {_COMPARE[name]} {args[1]}"
    if floats and name in _FLOAT_CALLS:
        return f"{_FLOAT_CALLS[name]}({', '.join(args)})"
    match name:
        case "where":
            return f"{args[0]} ? {args[1]} : {args[2]}"
        case "cast":
            return f"{args[0]} != 0" if dtype == "bool" else f"({C_TYPES[dtype]}){args[0]}"
        case "min" | "max":
            return _extreme(name, floats, args, expr.args)
        case "div":
            return f"{args[0]} / {args[1]}"
        case "idiv" | "imod":
            return _division(expr, nest, args)
        case "trunc_div" | "fmod":
            return f"edge_{name}({args[0]}, {args[1]})"
        case "neg":
            return _narrow(dtype, f"-{args[0]}")
        case "not":
            return f"!{args[0]}" if dtype == "bool" else _narrow(dtype, f"~{args[0]}")
        case "abs":
            return f"fabsf({args[0]})" if floats else f"{args[0]} < 0 ? -{args[0]} : {args[0]}"
        case "sign" if floats:
            return f"(float)(({args[0]} > 0) - ({args[0]} < 0))"
        case "sign":
            return f"({args[0]} > 0) - ({args[0]} < 0)"
        case "isnan":
            return f"{args[0]} != {args[0]}" if floats else "0"
        case "rsqrt":
            return f"1.0f / sqrtf({args[0]})"
        case "reciprocal":
            return f"1.0f / {args[0]}"
        case "shl":
            return _narrow(dtype, f"{args[0]} << ({args[1]} & {_bits(dtype) - 1})")
        case "shr":
            return f"{args[0]} >> ({args[1]} & {_bits(dtype) - 1})"
        case "floor" | "ceil" | "trunc" | "round":
            return args[0]
    raise AssertionError(f"no C for {name} of {given}")


def _bits(dtype: str) -> int:
    return {"int64": 64, "int32": 32}.get(dtype, 8)


def _narrow(dtype: str, text: str) -> str:
    """C computes small integers as int."""
    return f"(uint8_t)({text})" if dtype == "uint8" else text


def _extreme(name: str, floats: bool, args: Sequence[str], exprs: Sequence[ir.Expr]) -> str:
    """min or max; a NaN on either side comes through."""
    sign = ">" if name == "max" else "<"
    first, second = args
    if not floats:
        return f"{first} {sign} {second} ? {first} : {second}"
    # Beside a number, which is itself, the comparison alone lets a NaN in `first` through.
    if isinstance(exprs[1], ir.Const) and exprs[1].value == exprs[1].value:
        back = "<" if name == "max" else ">"
        return f"{first} {back} {second} ? {second} : {first}"
    return f"({first} {sign} {second}) | ({first} != {first}) ? {first} : {second}"


def _division(expr: ir.Op, nest: ir.Nest, args: Sequence[str]) -> str:
    """Division that rounds down. Of positions by a positive number C's own does it, as neither is negative."""
    divisor = expr.args[1]
    if isinstance(divisor, ir.Const) and divisor.value > 0 and _greatest(expr.args[0], nest) is not None:
        return f"{args[0]} {'/' if expr.name == 'idiv' else '%'} {args[1]}"
    return f"edge_{expr.name}({args[0]}, {args[1]})"


def _greatest(node: ir.Expr, nest: ir.Nest) -> int | None:
    """A bound of an int64 position that is surely neither negative nor wrapped around; None where that is unknown."""
    match node:
        case ir.Const(value=int() as value, dtype="int64"):
            return value if 0 <= value <= _MOST else None
        case ir.Axis(index=axis):
            return max(_extents(nest, axis), default=1) - 1
        case ir.Op(name="add" | "mul" | "idiv" | "imod" as name, dtype="int64", args=(left, right)):
            first, second = _greatest(left, nest), _greatest(right, nest)
            if first is None or second is None or (name in ("idiv", "imod") and not _is_positive(right)):
                return None
            by = max(second, 1)
            found = {"add": first + second, "mul": first * second, "idiv": first // by, "imod": min(first, by - 1)}[
                name
            ]
            return found if found <= _MOST else None
    return None


def _is_positive(node: ir.Expr) -> bool:
    return isinstance(node, ir.Const) and node.value > 0


def _extents(nest: ir.Nest, axis: int) -> tuple[int, ...]:
    """What axis number `axis` runs to: that of an outer loop, or of each statement that has it."""
    rank = len(nest.outer)
    if axis < rank:
        return numbers(nest.outer[axis : axis + 1])
    own = [statement.extents for statement in nest.body if isinstance(statement, ir.Reduce | ir.Store)]
    return numbers([extents[axis - rank] for extents in own if len(extents) > axis - rank])
