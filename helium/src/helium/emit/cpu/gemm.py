"""Matrix products of tiles: operands packed into panels, then register-blocked micro-kernels into the accumulator.

The scheme is that of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), inside one
tile: a panel of the right operand stays in the first cache while panels of the left one stream past it.
"""

from __future__ import annotations

from dataclasses import dataclass

from helium import dtypes, ir
from helium.emit.cpu import memory
from helium.emit.cpu.code import F32, F64, Code, V
from helium.emit.cpu.micro import Shape, micro, pack
from helium.emit.cpu.passes import Keep, Passes
from helium.emit.cpu.scope import Buffer, Coord, Scope
from helium.emit.cpu.tiles import Tiles
from helium.types import DType, Extent, TileType, Value

DEPTH = 256
"""Steps along the contraction between two visits of the accumulator: a right panel so deep fits the first cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """A matrix in memory, strides in elements; `unit` tells which dimension, if any, surely has stride 1."""

    pointer: V
    strides: tuple[V, V]
    unit: int | None


class Gemm:
    """Emits products into the function of `passes`."""

    def __init__(self, passes: Passes, tiles: Tiles) -> None:
        self.passes, self.tiles = passes, tiles
        self.c: Code = passes.c
        self.frame = passes.frame

    def shape(self, dtype: DType) -> Shape:
        """The register tile for the machine."""
        machine = self.frame.plan.machine
        lanes = machine.vector_bytes // dtypes.BYTES[dtype]
        rows = 14 if machine.registers >= 32 else 6
        return Shape(F64 if dtype == "float64" else F32, dtypes.BYTES[dtype], lanes, rows, 2 * lanes)

    def clear(self, scope: Scope, value: Value, buffer: Buffer) -> None:
        """Set a product's buffer to zero."""
        rows, columns = value.type.shape
        c, one = self.c, self.c.i64(1)
        kind = memory.register_type(buffer.dtype, 1)
        with c.loop(c.i64(0), self._count(scope, rows)) as row, c.loop(c.i64(0), self._count(scope, columns)) as column:
            offset = c.b.add(c.b.mul(row, buffer.strides[0] or one), c.b.mul(column, buffer.strides[1] or one))
            c.store(c.const(kind, 0), c.offset(buffer.pointer, offset, kind), dtypes.BYTES[buffer.dtype])

    def accumulate(self, scope: Scope, dot: ir.Dot, buffer: Buffer) -> None:
        """``buffer += left @ right``."""
        c, dtype = self.c, buffer.dtype
        shape = self.shape(dtype)
        (m, k), n = dot.left.type.shape, dot.right.type.shape[1]
        left, right = (self._matrix(scope, v, dtype, dot.line) for v in (dot.left, dot.right))
        rows, depth, columns = (self._count(scope, extent) for extent in (m, k, n))
        packed_left = self._panels(m, shape.rows_padded, shape.rows, shape, dot)
        packed_right = self._panels(n, shape.columns, shape.columns, shape, dot)
        pack_left = pack(c.module, shape, shape.rows, shape.rows_padded, DEPTH, _unit(left, 0))
        pack_right = pack(c.module, shape, shape.columns, shape.columns, DEPTH, _unit(right, 1))
        kernel = micro(c.module, shape)
        with c.loop(c.i64(0), depth, DEPTH) as start:
            steps = c.minimum(c.i64(DEPTH), c.b.sub(depth, start))
            source = c.offset(left.pointer, c.b.mul(start, left.strides[1]), shape.element)
            c.b.call(pack_left, [source, left.strides[0], left.strides[1], rows, steps, packed_left])
            source = c.offset(right.pointer, c.b.mul(start, right.strides[0]), shape.element)
            c.b.call(pack_right, [source, right.strides[1], right.strides[0], columns, steps, packed_right])
            self._tile(shape, kernel, (rows, columns, steps), (packed_left, packed_right), buffer)

    def _tile(self, shape: Shape, kernel: V, sizes: tuple[V, V, V], panels: tuple[V, V], buffer: Buffer) -> None:
        c, (rows, columns, steps) = self.c, sizes
        stride = buffer.strides[0] or c.i64(shape.columns)
        with c.loop(c.i64(0), c.ceil_div(columns, shape.columns)) as j:
            right = c.offset(panels[1], c.b.mul(j, c.i64(shape.columns * DEPTH)), shape.element)
            with c.loop(c.i64(0), c.ceil_div(rows, shape.rows)) as i:
                left = c.offset(panels[0], c.b.mul(i, c.i64(shape.rows_padded * DEPTH)), shape.element)
                offset = c.b.add(c.b.mul(c.b.mul(i, c.i64(shape.rows)), stride), c.b.mul(j, c.i64(shape.columns)))
                target = c.offset(buffer.pointer, offset, shape.element)
                c.b.call(kernel, [steps, left, right, target, stride])

    def _count(self, scope: Scope, extent: Extent) -> V:
        return self.passes.count(scope, extent) if self.passes.wide(extent) else self.c.i64(1)

    def _panels(self, extent: Extent, width: int, step: int, shape: Shape, dot: ir.Dot) -> V:
        """Scratch for all panels of one operand: (lanes / step, rounded up) panels of width × DEPTH."""
        probe = Value(-1, TileType("float64" if shape.bytes == 8 else "float32", (extent,)))
        count = self.tiles.count_of(probe, dot.line)
        if isinstance(count, int):
            panels = -(-count // step)
            return self.frame.scratch([(panels * width * DEPTH, 0)], shape.bytes)
        return self.frame.scratch([(count, step), (-(-width // step) * DEPTH, 0)], shape.bytes)

    def _matrix(self, scope: Scope, value: Value, dtype: DType, line: int) -> Matrix:
        """An operand in memory: where it is loaded from, if that is as good, else a copy in scratch of `dtype`."""
        definition = self.passes.evaluator.definitions.get(value)
        if isinstance(definition, ir.Transpose) and value not in scope.buffers:
            inner = self._matrix(scope, definition.source, dtype, line)
            return Matrix(
                inner.pointer, (inner.strides[1], inner.strides[0]), None if inner.unit is None else 1 - inner.unit
            )
        plain = isinstance(definition, ir.Load) and value not in scope.buffers and definition.mask is None
        if plain and isinstance(definition, ir.Load) and value.type.dtype == dtype:
            found = self._loaded(scope, definition)
            if found is not None:
                return found
        wide = value
        if value.type.dtype != dtype:
            wide = Value(-value.number - 2, TileType(dtype, value.type.shape))
            self.passes.evaluator.definitions[wide] = ir.Cast(wide, value, line)
        buffer = scope.buffers.get(wide) or self.tiles.make(wide, line)
        if wide not in scope.buffers:
            self.passes.run(scope, [Keep(wide, buffer)])
        one = self.c.i64(1)
        return Matrix(buffer.pointer, (buffer.strides[0] or one, buffer.strides[1] or one), 1)

    def _loaded(self, scope: Scope, load: ir.Load) -> Matrix | None:
        """The matrix that a load reads, if its indices are blocks, whole dimensions and scalars."""
        c, evaluator = self.c, self.passes.evaluator
        if any(isinstance(i, ir.ValueIndex) for i in load.indices):
            return None
        layout = self.frame.plan.layouts[load.tensor]
        zeros: tuple[Coord, ...] = (evaluator.zero,) * len(load.result.type.shape)
        place = evaluator.place(scope, load.tensor, load.indices, None, zeros, {})
        element = F64 if load.result.type.dtype == "float64" else F32
        by_dim = {i.dim: d for d, i in enumerate(load.indices) if not isinstance(i, ir.ValueIndex)}
        strides = [layout.strides[by_dim[dim]] for dim in (0, 1)]
        unit = next((dim for dim in (1, 0) if strides[dim] == 1), None)
        first, second = (self.frame.extent(s) for s in strides)
        return Matrix(c.offset(place.pointer, place.offset, element), (first, second), unit)


def _unit(matrix: Matrix, panel_dim: int) -> str:
    """Along what the elements of a panel are consecutive: across the panel, along its depth, or neither."""
    if matrix.unit is None:
        return "none"
    return "across" if matrix.unit == panel_dim else "along"
