"""A thin layer over the LLVM builder: constants, loops, vectors, intrinsics, and how dtypes are held in registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from llvmlite import ir as llvm

from helium.types import DType

V: TypeAlias = Any
"""An LLVM value; llvmlite has no types."""
T: TypeAlias = Any
"""An LLVM type."""

I1, I8, I16, I32, I64 = (llvm.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = llvm.HalfType(), llvm.FloatType(), llvm.DoubleType()
POINTER = llvm.PointerType()

REGISTER: dict[DType, T] = {
    "bool": I1, "int8": I8, "uint8": I8, "int16": I16, "int32": I32, "int64": I64,
    "float16": F16, "bfloat16": I16, "float32": F32, "float64": F64,
}  # fmt: skip
"""How an element is held: bfloat16 by its bits, bool as one bit."""
MEMORY: dict[DType, T] = {**REGISTER, "bool": I8}
"""How an element lies in memory."""


class Code:
    """One function under construction."""

    def __init__(self, module: llvm.Module, function: V) -> None:
        self.module, self.function = module, function
        self.entry = function.append_basic_block("entry")
        self.b = llvm.IRBuilder(self.entry)

    # Constants and types.

    def const(self, kind: T, value: float | int) -> V:
        """A constant, repeated over the lanes of a vector type."""
        if isinstance(kind, llvm.VectorType):
            return llvm.Constant(kind, [value] * kind.count)
        return llvm.Constant(kind, value)

    def i64(self, value: int) -> V:
        """A 64-bit constant."""
        return llvm.Constant(I64, value)

    def like(self, kind: T, element: T) -> T:
        """`element` with as many lanes as `kind`."""
        return llvm.VectorType(element, kind.count) if isinstance(kind, llvm.VectorType) else element

    def element(self, kind: T) -> T:
        """The type of one lane."""
        return kind.element if isinstance(kind, llvm.VectorType) else kind

    def splat(self, value: V, lanes: int) -> V:
        """A scalar in every lane."""
        if isinstance(value.type, llvm.VectorType):
            return value
        kind = llvm.VectorType(value.type, lanes)
        first = self.b.insert_element(llvm.Constant(kind, llvm.Undefined), value, llvm.Constant(I32, 0))
        return self.b.shuffle_vector(first, first, llvm.Constant(llvm.VectorType(I32, lanes), [0] * lanes))

    def match(self, values: Sequence[V]) -> list[V]:
        """`values`, scalars among vectors splatted."""
        counts = [v.type.count for v in values if isinstance(v.type, llvm.VectorType)]
        return [self.splat(v, counts[0]) for v in values] if counts else list(values)

    def iota(self, lanes: int, element: T = I64) -> V:
        """0, 1, 2 …"""
        return llvm.Constant(llvm.VectorType(element, lanes), list(range(lanes)))

    def shuffle(self, a: V, b: V, lanes: Sequence[int]) -> V:
        """Pick lanes out of a and b together."""
        return self.b.shuffle_vector(a, b, llvm.Constant(llvm.VectorType(I32, len(lanes)), list(lanes)))

    # Calls and control.

    def intrinsic(self, name: str, args: Sequence[V], result: T, overload: Sequence[T]) -> V:
        """Call ``llvm.<name>`` overloaded on these types."""
        suffix = "".join("." + _mangle(kind) for kind in overload)
        full = f"llvm.{name}{suffix}"
        function = self.module.globals.get(full)
        if function is None:
            function = llvm.Function(self.module, llvm.FunctionType(result, [a.type for a in args]), full)
        return self.b.call(function, list(args))

    def map(self, name: str, *args: V) -> V:
        """An intrinsic whose operands and result have one type."""
        return self.intrinsic(name, args, args[0].type, [args[0].type])

    def fma(self, a: V, b: V, c: V) -> V:
        """a·b + c, fused where the target can."""
        return self.map("fmuladd", a, b, c)

    def block(self, name: str) -> V:
        """A new basic block at the end of the function."""
        return self.function.append_basic_block(name)

    def slot(self, kind: T, name: str = "") -> V:
        """A stack slot, made in the entry block."""
        with self.b.goto_entry_block():
            made = self.b.alloca(kind, name=name)
        made.type = POINTER
        return made

    @contextmanager
    def loop(self, start: V, stop: V, step: V | int = 1) -> Iterator[V]:
        """``for i in range(start, stop, step)``, 64-bit."""
        step = self.i64(step) if isinstance(step, int) else step
        head, body, after = self.block("head"), self.block("body"), self.block("after")
        before = self.b.block
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64)
        index.add_incoming(start, before)
        self.b.cbranch(self.b.icmp_signed("<", index, stop), body, after)
        self.b.position_at_end(body)
        yield index
        index.add_incoming(self.b.add(index, step), self.b.block)
        self.b.branch(head)
        self.b.position_at_end(after)

    def minimum(self, a: V, b: V) -> V:
        """The smaller of two signed integers."""
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    def ceil_div(self, a: V, b: int | V) -> V:
        """⌈a / b⌉ of non-negative a."""
        b = self.i64(b) if isinstance(b, int) else b
        return self.b.sdiv(self.b.add(a, self.b.sub(b, self.i64(1))), b)

    # Memory.

    def offset(self, pointer: V, index: V, element: T) -> V:
        """`pointer` advanced by `index` elements."""
        return self.b.gep(pointer, [index], source_etype=element)

    def load(self, pointer: V, kind: T, align: int) -> V:
        """Load `kind`."""
        return self.b.load(pointer, align=align, typ=kind)

    def store(self, value: V, pointer: V, align: int) -> None:
        """Store `value`."""
        self.b.store(value, pointer, align=align)


def _mangle(kind: T) -> str:
    if isinstance(kind, llvm.VectorType):
        return f"v{kind.count}{_mangle(kind.element)}"
    if isinstance(kind, llvm.PointerType):
        return "p0"
    if isinstance(kind, llvm.IntType):
        return f"i{kind.width}"
    return {"half": "f16", "float": "f32", "double": "f64"}[str(kind)]
