"""A function's frame: buffers, sizes, scalar arguments and scratch memory, all set up in its entry block."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir as llvm

from helium import contract
from helium.contract import Extent
from helium.emit.cpu import elementwise
from helium.emit.cpu.code import F64, I8, I64, POINTER, Code, V
from helium.emit.cpu.plan import Plan
from helium.sizes import Const, Dim, IntArg, Operation, Size


@dataclass(frozen=True, slots=True)
class Scratch:
    """One piece of scratch memory: a product of counts, each with padding added, times bytes, rounded up to 64."""

    counts: tuple[tuple[Extent, int], ...]
    itemsize: int

    def bytes(self, sizes: dict[str, int]) -> int:
        """Its size, given a number for each symbol."""
        return -(-math.prod(contract.evaluate(e, sizes) + pad for e, pad in self.counts) * self.itemsize // 64) * 64


class Frame:
    """Gives the values of sizes and the addresses of tensors inside one function `(buffers, sizes, scratch, …)`."""

    def __init__(self, code: Code, plan: Plan) -> None:
        self.code, self.plan = code, plan
        self.requests: list[Scratch] = []
        buffers, self._sizes, self._scratch = code.function.args[:3]
        self.tensors: dict[str, V] = {}
        for number, name in enumerate(plan.layouts):
            self.tensors[name] = code.load(code.offset(buffers, code.i64(number), POINTER), POINTER, 8)
        self._slots = {
            name: code.load(code.offset(self._sizes, code.i64(i), I64), I64, 8) for i, name in enumerate(plan.symbols)
        }
        self.dummy = code.slot(llvm.ArrayType(I64, 8))
        self._start = code.block("start")
        self._scratch_end = code.i64(0)
        code.b.position_at_end(self._start)

    def finish(self) -> None:
        """Join the entry block to the body."""
        with self.code.b.goto_block(self.code.entry):
            self.code.b.branch(self._start)

    # Sizes.

    def extent(self, extent: Extent) -> V:
        """The value of a layout's extent."""
        if isinstance(extent, int):
            return self.code.i64(extent)
        factors = [self.code.i64(int(f)) if f.isdecimal() else self._slots[f] for f in extent.split("*")]
        result = factors[0]
        for factor in factors[1:]:
            result = self.code.b.mul(result, factor)
        return result

    def size(self, size: Size) -> V:
        """The value of a size."""
        c = self.code
        match size:
            case Const(value=value):
                return c.i64(value)
            case Dim(tensor=tensor, axis=axis):
                return self.extent(self.plan.layouts[tensor].shape[axis])
            case IntArg(name=name):
                return self.argument(name, "int64")
            case Operation(operator=operator, left=left, right=right):
                return self._operation(operator, self.size(left), self.size(right))

    def _operation(self, operator: str, a: V, b: V) -> V:
        names = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}
        return elementwise.binary(self.code, names.get(operator, operator), a, b, "int64")

    def symbolic(self, size: Size) -> Extent | None:
        """A size as an extent; None if it is no product of symbols."""
        if isinstance(size, Dim):
            return self.plan.layouts[size.tensor].shape[size.axis]
        if isinstance(size, IntArg):
            return int(self.plan.scalars[size.name]) if size.name in self.plan.scalars else size.name
        return size.value if isinstance(size, Const) else None

    def argument(self, name: str, dtype: str) -> V:
        """A scalar argument: baked in, or read from `sizes`."""
        c = self.code
        baked = self.plan.scalars.get(name)
        if dtype == "float64":
            return c.const(F64, float(baked)) if baked is not None else c.b.bitcast(self._slots[name], F64)
        value = c.i64(int(baked)) if baked is not None else self._slots[name]
        return value if dtype == "int64" else c.b.icmp_signed("!=", value, c.i64(0))

    # Scratch.

    def scratch(self, counts: Sequence[tuple[Extent, int]], itemsize: int) -> V:
        """The address of scratch memory for this many elements, aligned to 64; the same for the whole function.

        Each count is an extent and the padding to add to it.
        """
        request = Scratch(tuple(counts), itemsize)
        self.requests.append(request)
        c = self.code
        with c.b.goto_block(c.entry):
            address = c.offset(self._scratch, self._scratch_end, I8)
            size = c.i64(itemsize)
            for count, padding in counts:
                size = c.b.mul(size, c.b.add(self.extent(count), c.i64(padding)))
            rounded = c.b.and_(c.b.add(size, c.i64(63)), c.i64(-64))
            self._scratch_end = c.b.add(self._scratch_end, rounded)
        return address


def float_bits(value: float) -> int:
    """A float64 as the int64 of the same bits."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])
