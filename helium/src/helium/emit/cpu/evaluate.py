"""Evaluates IR values at lane coordinates: what a tile holds at one place, or at a vector of places, on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from llvmlite import ir as llvm

from helium import ir
from helium.emit.cpu import elementwise, memory
from helium.emit.cpu.analysis import Definitions
from helium.emit.cpu.code import V
from helium.emit.cpu.frame import Frame
from helium.emit.cpu.memory import Place
from helium.emit.cpu.scope import Buffer, Coord, Scope
from helium.types import Fixed, Value

Coords: TypeAlias = tuple[Coord, ...]
Memo: TypeAlias = dict[tuple[int, Coords], V]


class Evaluator:
    """Computes values in `scope`. Within one memo, a value at one place is computed once."""

    def __init__(self, frame: Frame, definitions: Definitions) -> None:
        self.frame, self.code, self.definitions = frame, frame.code, definitions
        self.zero = Coord(self.code.i64(0))

    def at(self, scope: Scope, value: Value, coords: Coords, memo: Memo) -> V:
        """`value` at `coords`, one per dimension; a scalar where no lane differs."""
        if value in scope.scalars:
            return scope.scalars[value]
        key = (value.number, coords)
        if key not in memo:
            if value in scope.buffers:
                buffer = scope.buffers[value]
                memo[key] = memory.load(self.code, self.buffer_place(buffer, coords), buffer.dtype, self.frame.dummy)
            else:
                memo[key] = self._compute(scope, self.definitions[value], coords, memo)
        return memo[key]

    def _compute(self, scope: Scope, i: ir.Instruction, coords: Coords, memo: Memo) -> V:
        c = self.code

        def at(value: Value) -> V:
            return self.at(scope, value, coords, memo)

        match i:
            case ir.Constant(result=result, value=value):
                return elementwise.literal(c, value, result.type.dtype)
            case ir.Argument(name=name, result=result):
                return self.frame.argument(name, result.type.dtype)
            case ir.SizeValue(size=size):
                return self.frame.size(size)
            case ir.AxisValue():
                return self._fact(scope, i, coords)
            case ir.Load():
                place = self.place(scope, i.tensor, i.indices, i.mask, coords, memo)
                return memory.load(c, place, i.result.type.dtype, self.frame.dummy)
            case ir.Cast(source=source, result=result):
                return elementwise.cast(c, at(source), source.type.dtype, result.type.dtype)
            case ir.Broadcast(source=source):
                return self._broadcast(scope, source, coords, memo)
            case ir.Unsqueeze(source=source, dim=dim):
                return self.at(scope, source, coords[:dim] + coords[dim + 1 :], memo)
            case ir.Reduce(source=source, dim=dim):
                return self.at(scope, source, (*coords[:dim], self.zero, *coords[dim:]), memo)
            case ir.Transpose(source=source, order=order):
                moved = tuple(coords[order.index(d)] for d in range(len(order)))
                return self.at(scope, source, moved, memo)
            case ir.Unary(op=op, source=source):
                return elementwise.unary(c, op, at(source), source.type.dtype)
            case ir.Binary(op=op, left=left, right=right):
                return self._binary(op, at(left), at(right), left)
            case ir.Compare(op=op, left=left, right=right):
                a, b = c.match([at(left), at(right)])
                return elementwise.compare(c, op, a, b, left.type.dtype)
            case ir.Select(condition=condition, then=then, otherwise=otherwise):
                return c.b.select(*c.match([at(condition), at(then), at(otherwise)]))
        raise AssertionError(f"{type(i).__name__} has no value at one place")

    def _binary(self, op: str, a: V, b: V, left: Value) -> V:
        """Dividing many lanes by one number multiplies by its reciprocal, of which loops are freed."""
        c, dtype = self.code, left.type.dtype
        spread = isinstance(a.type, llvm.VectorType) and not isinstance(b.type, llvm.VectorType)
        if op == "div" and spread and dtype == "float32":
            op, b = "mul", c.b.fdiv(c.const(b.type, 1.0), b)
        a, b = c.match([a, b])
        return elementwise.binary(c, op, a, b, dtype)

    def _broadcast(self, scope: Scope, source: Value, coords: Coords, memo: Memo) -> V:
        shape = source.type.shape
        own = coords[len(coords) - len(shape) :]
        chosen = tuple(self.zero if e == Fixed(1) else coord for e, coord in zip(shape, own, strict=True))
        return self.at(scope, source, chosen, memo)

    def _fact(self, scope: Scope, i: ir.AxisValue, coords: Coords) -> V:
        axis = scope.axes[i.axis]
        if i.fact == "index":
            return self._index(axis.base, coords[0])
        facts = {"begin": axis.begin, "end": axis.end, "id": axis.number, "block_size": self.code.i64(axis.block)}
        return facts[i.fact]

    def _index(self, base: V, coord: Coord) -> V:
        c = self.code
        start = c.b.add(base, coord.index)
        return start if coord.lanes == 1 else c.b.add(c.splat(start, coord.lanes), c.iota(coord.lanes))

    # Places.

    def place(
        self,
        scope: Scope,
        tensor: str,
        indices: Sequence[ir.Index],
        mask: Value | None,
        coords: Coords,
        memo: Memo,
    ) -> Place:
        """Where an access at `coords` lies, and which of its lanes are live."""
        c, layout = self.code, self.frame.plan.layouts[tensor]
        lanes = max((coord.lanes for coord in coords), default=1)
        live = [coord.mask for coord in coords if coord.mask is not None]
        offset: V = c.i64(0)
        for dimension, index in enumerate(indices):
            stride = layout.strides[dimension]
            if isinstance(index, ir.ValueIndex):
                term, valid = self._value_term(scope, index, tensor, dimension, coords, memo)
                live.append(valid)
            else:
                base = scope.axes[index.axis].base if isinstance(index, ir.AxisIndex) else c.i64(0)
                coord = coords[index.dim]
                runs = coord.lanes > 1 and stride == 1
                term = c.b.add(base, coord.index) if runs else self._index(base, coord)
            if stride != 1:
                term = c.b.mul(*c.match([term, self.frame.extent(stride)]))
            offset = c.b.add(*c.match([offset, term]))
        if mask is not None:
            live.append(self.at(scope, mask, coords, memo))
        return self._placed(tensor, offset, lanes, live, indices, coords)

    def _value_term(
        self, scope: Scope, index: ir.ValueIndex, tensor: str, dimension: int, coords: Coords, memo: Memo
    ) -> tuple[V, V]:
        c, value = self.code, index.value
        own = coords if value.type.shape else ()
        term = elementwise.cast(c, self.at(scope, value, own, memo), value.type.dtype, "int64")
        size = self.frame.extent(self.frame.plan.layouts[tensor].shape[dimension])
        return term, c.b.icmp_unsigned("<", *c.match([term, size]))

    def _placed(
        self, tensor: str, offset: V, lanes: int, live: list[V], indices: Sequence[ir.Index], coords: Coords
    ) -> Place:
        """Choose between one element, a run and a gather, and fold the liveness into one mask."""
        c = self.code
        layout = self.frame.plan.layouts[tensor]
        is_vector = isinstance(offset.type, llvm.VectorType)
        runs = [
            d for d, i in enumerate(indices)
            if not isinstance(i, ir.ValueIndex) and coords[i.dim].lanes > 1 and layout.strides[d] == 1
        ]  # fmt: skip
        if runs and is_vector:
            offset = c.b.add(offset, c.iota(lanes))
        elif lanes > 1 and not runs and not is_vector:
            offset = c.splat(offset, lanes)
        mask: V = None
        for part in live:
            mask = part if mask is None else c.b.and_(*c.match([mask, part]))
        if mask is not None and lanes > 1:
            mask = c.splat(mask, lanes)
        return Place(self.frame.tensors[tensor], offset, lanes, mask)

    def buffer_place(self, buffer: Buffer, coords: Coords) -> Place:
        """Where `coords` lie in scratch memory; its padding lets whole vectors through."""
        c = self.code
        offset: V = c.i64(0)
        lanes, mask = 1, None
        for coord, stride in zip(coords, buffer.strides, strict=True):
            if stride is None:
                continue
            if coord.lanes > 1:
                lanes, mask = coord.lanes, coord.mask
                is_run = isinstance(stride, llvm.Constant) and stride.constant == 1
                term = coord.index if is_run else self._index(c.i64(0), coord)
            else:
                term = coord.index
            offset = c.b.add(*c.match([offset, c.b.mul(*c.match([term, stride]))]))
        return Place(buffer.pointer, offset, lanes, mask)

    def scalar(self, scope: Scope, value: Value) -> V:
        """A value that has one lane here."""
        return self.at(scope, value, (self.zero,) * len(value.type.shape), {})
