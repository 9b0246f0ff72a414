"""Makes typed instructions: promotes dtypes, broadcasts shapes, and keeps the guards that both imply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from helium import dtypes, ir
from helium.errors import DTypeMismatch, ShapeMismatch
from helium.frontend.values import Number, ScalarRef, Weak
from helium.sizes import Const, Dim, IntArg, Operation, Size
from helium.types import ArithmeticOp, Block, CompareOp, DType, Extent, Fixed, ReduceOp, TileType, UnaryOp, Value, Whole

Operand = Value | Weak | ScalarRef | Number | Size
_COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_FLOAT_ONLY = frozenset({"exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos"})


class Builder:
    """Appends instructions to the innermost open body. `line` is the user's line given to each."""

    def __init__(self) -> None:
        self.line = 0
        self.guards: list[ir.Guard] = []
        self.bodies: list[list[ir.Instruction]] = [[]]
        self._count = 0
        self._casts: dict[Value, Value] = {}

    # Values and bodies.

    def new(self, kind: TileType, hint: str = "") -> Value:
        """A fresh value."""
        self._count += 1
        return Value(self._count, kind, hint)

    @contextmanager
    def body(self) -> Iterator[list[ir.Instruction]]:
        """Open a body; instructions go there until it closes."""
        self.bodies.append([])
        try:
            yield self.bodies[-1]
        finally:
            self.bodies.pop()

    def append(self, instruction: ir.Instruction) -> None:
        """Add an instruction to the open body."""
        self.bodies[-1].append(instruction)

    def define(self, kind: TileType, make: Callable[[Value], ir.Instruction]) -> Value:
        """Add the instruction that `make` builds around a fresh result."""
        result = self.new(kind)
        self.append(make(result))
        return result

    def guard(self, left: Size, relation: str, right: Size) -> None:
        """Require a relation of sizes, unless it is plainly true."""
        checked = ir.Guard(left, "==" if relation == "==" else "<=", right, self.line)
        known = {(g.left, g.relation, g.right) for g in self.guards}
        known |= {(g.right, g.relation, g.left) for g in self.guards if g.relation == "=="}
        if left != right and (left, checked.relation, right) not in known:
            self.guards.append(checked)

    # Scalars.

    def constant(self, value: Number, dtype: DType) -> Value:
        """A literal of `dtype`."""
        kind = dtypes.category(dtype)
        literal: Number = float(value) if kind == 2 else int(value) if kind == 1 else bool(value)
        return self.define(TileType(dtype), lambda result: ir.Constant(result, literal, self.line))

    def weak(self, operand: Operand) -> Weak | Number:
        """An operand that is no tile, as something that promotes weakly."""
        if isinstance(operand, ScalarRef):
            return Weak(self.define(TileType(operand.dtype), lambda r: ir.Argument(r, operand.name, self.line)))
        if isinstance(operand, (Const, Dim, IntArg, Operation)):
            return Weak(self.define(TileType("int64"), lambda r: ir.SizeValue(r, operand, self.line)))
        assert not isinstance(operand, Value)
        return operand

    def tile(self, operand: Operand, dtype: DType | None = None) -> Value:
        """Any operand as a value, converted to `dtype` if given."""
        if isinstance(operand, Value):
            return self.cast(operand, dtype or operand.type.dtype)
        weak = self.weak(operand)
        if isinstance(weak, Weak):
            return self.cast(weak.value, dtype or weak.value.type.dtype)
        natural: DType = "bool" if isinstance(weak, bool) else "int64" if isinstance(weak, int) else "float32"
        return self.constant(weak, dtype or natural)

    # Dtypes.

    def cast(self, source: Value, dtype: DType) -> Value:
        """`source` in `dtype`. A half just rounded from float32 widens to what it was (more exact, and free)."""
        if source.type.dtype == dtype:
            return source
        if source in self._casts and self._casts[source].type.dtype == dtype:
            return self._casts[source]
        result = self.define(TileType(dtype, source.type.shape), lambda r: ir.Cast(r, source, self.line))
        if dtype in dtypes.HALVES and source.type.dtype == "float32":
            self._casts[result] = source
        return result

    def common_dtype(self, operands: Sequence[Operand]) -> DType:
        """The dtype in which torch combines `operands`; Python numbers and scalar arguments promote weakly."""
        strong: DType | None = None
        for operand in operands:
            if isinstance(operand, Value):
                strong = operand.type.dtype if strong is None else dtypes.promote(strong, operand.type.dtype)
        highest = max((self._category(o) for o in operands), default=0)
        if strong is None or highest > dtypes.category(strong):
            wide: DType = "float64" if strong is None and self._has_weak(operands) else "float32"
            return ("bool", "int64", wide)[highest]
        return strong

    @staticmethod
    def _has_weak(operands: Sequence[Operand]) -> bool:
        return any(isinstance(o, (Weak, ScalarRef)) for o in operands)

    @staticmethod
    def _category(operand: Operand) -> int:
        if isinstance(operand, Value):
            return dtypes.category(operand.type.dtype)
        if isinstance(operand, Weak):
            return dtypes.category(operand.value.type.dtype)
        if isinstance(operand, ScalarRef):
            return dtypes.category(operand.dtype)
        return 0 if isinstance(operand, bool) else 2 if isinstance(operand, float) else 1

    # Shapes.

    def broadcast(self, source: Value, shape: tuple[Extent, ...]) -> Value:
        """`source` stretched to `shape`."""
        if source.type.shape == shape:
            return source
        self._agree(source.type.shape, shape)
        return self.define(TileType(source.type.dtype, shape), lambda r: ir.Broadcast(r, source, self.line))

    def common_shape(self, shapes: Sequence[tuple[Extent, ...]]) -> tuple[Extent, ...]:
        """The shape to which all `shapes` stretch, by torch's rule."""
        common: tuple[Extent, ...] = ()
        for shape in shapes:
            common = self._agree(common, shape)
        return common

    def _agree(self, left: tuple[Extent, ...], right: tuple[Extent, ...]) -> tuple[Extent, ...]:
        rank = max(len(left), len(right))
        padded = [(Fixed(1),) * (rank - len(shape)) + shape for shape in (left, right)]
        return tuple(self._meet(a, b, left, right) for a, b in zip(*padded, strict=True))

    def _meet(self, a: Extent, b: Extent, left: tuple[Extent, ...], right: tuple[Extent, ...]) -> Extent:
        if a == b or b == Fixed(1):
            return a
        if a == Fixed(1):
            return b
        if isinstance(a, Whole) and isinstance(b, Whole):
            self.guard(a.size, "==", b.size)
            return a
        shown = [f"[{', '.join(map(str, shape))}]" for shape in (left, right)]
        raise ShapeMismatch(
            f"tiles of shape {shown[0]} and {shown[1]} do not fit: {a} against {b}",
            fix="index both with the same tile variables, or insert a dimension with [:, None]",
        )

    # Operations.

    def unary(self, op: UnaryOp, operand: Operand) -> Value:
        """One of the elementwise operations of one operand, in torch's dtype for it."""
        source = self.tile(operand)
        dtype = source.type.dtype
        if op in _FLOAT_ONLY and not dtypes.is_float(dtype):
            dtype = "float32"
        wide = self.cast(source, dtypes.compute(dtype))
        result = self.define(wide.type, lambda r: ir.Unary(r, op, wide, self.line))
        return self.cast(result, dtype)

    def binary(self, op: ArithmeticOp | CompareOp, left: Operand, right: Operand) -> Value | Weak:
        """An elementwise operation of two operands; weak if both are."""
        if op == "pow":
            return self._power(left, right)
        return self._binary(op, left, right)

    def _power(self, base: Operand, exponent: Operand) -> Value | Weak:
        """Small whole powers by multiplication, others by the floating point operation."""
        if isinstance(exponent, int) and 1 <= exponent <= 4:
            result = base if isinstance(base, Value) else self.tile(base)
            for _ in range(exponent - 1):
                result = self.tile(self._binary("mul", result, base))
            return result if isinstance(base, Value) else Weak(result)
        if not any(self._category(side) == 2 for side in (base, exponent)):
            raise DTypeMismatch("a power of integer tiles", fix="use a constant exponent from 1 to 4, or floats")
        return self._binary("pow", base, exponent)

    def _binary(self, op: ArithmeticOp | CompareOp, left: Operand, right: Operand) -> Value | Weak:
        weak = not isinstance(left, Value) and not isinstance(right, Value)
        left, right = (o if isinstance(o, Value) else self.weak(o) for o in (left, right))
        dtype = self.common_dtype((left, right))
        if op == "div" and not dtypes.is_float(dtype):
            dtype = "float64" if weak else "float32"
        if op in ("and", "or", "xor") and dtypes.is_float(dtype):
            raise DTypeMismatch(f"`{op}` of {dtype} tiles", fix="compare first, such as (x > 0) & (y > 0)")
        wide = dtypes.compute(dtype)
        a, b = self.together([self.tile(left, wide), self.tile(right, wide)])
        if op in _COMPARE:
            compare = cast(CompareOp, op)
            kind = TileType("bool", a.type.shape)
            result = self.define(kind, lambda r: ir.Compare(r, compare, a, b, self.line))
        else:
            arithmetic = cast(ArithmeticOp, op)
            computed = self.define(a.type, lambda r: ir.Binary(r, arithmetic, a, b, self.line))
            result = self.cast(computed, dtype)
        return Weak(result) if weak else result

    def together(self, values: Sequence[Value]) -> list[Value]:
        """`values` stretched to their common shape."""
        shape = self.common_shape([v.type.shape for v in values])
        return [self.broadcast(v, shape) for v in values]

    def select(self, condition: Operand, then: Operand, otherwise: Operand) -> Value:
        """`then` where `condition`, else `otherwise`."""
        dtype = self.common_dtype((then, otherwise))
        c, a, b = self.together([self.tile(condition, "bool"), self.tile(then, dtype), self.tile(otherwise, dtype)])
        return self.define(a.type, lambda r: ir.Select(r, c, a, b, self.line))

    def unsqueeze(self, source: Value, dim: int) -> Value:
        """`source` with an extent of one at `dim`."""
        shape = (*source.type.shape[:dim], Fixed(1), *source.type.shape[dim:])
        return self.define(TileType(source.type.dtype, shape), lambda r: ir.Unsqueeze(r, source, dim, self.line))

    def reduce(self, op: ReduceOp, source: Value, dim: int, keepdim: bool) -> Value:
        """`source` folded along `dim`; halves are folded in float32 and rounded once."""
        dtype = source.type.dtype
        wide = self.cast(source, dtypes.compute(dtype))
        shape = wide.type.shape[:dim] + wide.type.shape[dim + 1 :]
        kind = TileType(wide.type.dtype, shape)
        result = self.cast(self.define(kind, lambda r: ir.Reduce(r, op, wide, dim, self.line)), dtype)
        return self.unsqueeze(result, dim) if keepdim else result

    def extent_size(self, extent: Extent) -> Operand:
        """How many live lanes an extent has, as a number or a scalar."""
        if isinstance(extent, Fixed):
            return extent.size
        if isinstance(extent, Whole):
            return extent.size
        return self.binary("sub", self.axis_value(extent.axis, "end"), self.axis_value(extent.axis, "begin"))

    def axis_value(self, axis: str, fact: str) -> Value | Weak:
        """A fact of the current block of `axis`."""
        shape: tuple[Extent, ...] = (Block(axis),) if fact == "index" else ()
        kind = TileType("int64", shape)
        result = self.define(kind, lambda r: ir.AxisValue(r, axis, fact, self.line))  # type: ignore[arg-type]
        return result if shape else Weak(result)
