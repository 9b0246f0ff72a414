"""The two inner functions of a product: packing a matrix into panels, and the register-blocked micro-kernel."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir as llvm

from helium.emit.cpu.code import I32, I64, POINTER, Code, T, V
from helium.emit.cpu.memory import run_mask


@dataclass(frozen=True, slots=True)
class Shape:
    """A register tile: `rows` × `columns` accumulators in vectors of `lanes` elements."""

    element: T
    bytes: int
    lanes: int
    rows: int
    columns: int

    @property
    def rows_padded(self) -> int:
        """Width of a left panel: the rows, up to whole vectors, so that packing writes whole vectors."""
        return -(-self.rows // self.lanes) * self.lanes

    @property
    def vector(self) -> T:
        """A register."""
        return llvm.VectorType(self.element, self.lanes)


def _function(module: llvm.Module, name: str, arguments: list[T]) -> tuple[V, bool]:
    """The module's function of that name, and whether it is new."""
    found = module.globals.get(name)
    if found is not None:
        return found, False
    function = llvm.Function(module, llvm.FunctionType(llvm.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    return function, True


def micro(module: llvm.Module, shape: Shape) -> V:
    """``void micro(steps, left panel, right panel, target, row stride)``: target += left · right."""
    function, new = _function(module, f"micro_{shape.element}", [I64, POINTER, POINTER, POINTER, I64])
    if new:
        _micro(Code(module, function), shape)
    return function


def _micro(c: Code, shape: Shape) -> None:
    steps, left, right, target, stride = c.function.args
    for pointer in (left, right, target):
        pointer.add_attribute("noalias")
    vectors = shape.columns // shape.lanes
    zero = c.const(shape.vector, 0.0)
    sums = [[c.slot(shape.vector) for _ in range(vectors)] for _ in range(shape.rows)]
    for row in sums:
        for slot in row:
            c.b.store(zero, slot)
    unrolled = c.b.and_(steps, c.i64(-4))
    with c.loop(c.i64(0), unrolled, 4) as step:
        for extra in range(4):
            _step(c, shape, sums, c.b.add(step, c.i64(extra)), left, right)
    with c.loop(unrolled, steps) as step:
        _step(c, shape, sums, step, left, right)
    for r, row in enumerate(sums):
        for v, slot in enumerate(row):
            offset = c.b.add(c.b.mul(stride, c.i64(r)), c.i64(v * shape.lanes))
            place = c.offset(target, offset, shape.element)
            total = c.b.fadd(c.load(place, shape.vector, shape.bytes), c.b.load(slot, typ=shape.vector))
            c.store(total, place, shape.bytes)
    c.b.ret_void()


def _step(c: Code, shape: Shape, sums: list[list[V]], step: V, left: V, right: V) -> None:
    size = shape.lanes * shape.bytes
    row_of_right = c.offset(right, c.b.mul(step, c.i64(shape.columns)), shape.element)
    row_of_left = c.offset(left, c.b.mul(step, c.i64(shape.rows_padded)), shape.element)
    columns = [
        c.load(c.offset(row_of_right, c.i64(v * shape.lanes), shape.element), shape.vector, size)
        for v in range(len(sums[0]))
    ]
    for r, row in enumerate(sums):
        one = c.load(c.offset(row_of_left, c.i64(r), shape.element), shape.element, shape.bytes)
        spread = c.splat(one, shape.lanes)
        for slot, column in zip(row, columns, strict=True):
            c.b.store(c.fma(spread, column, c.b.load(slot, typ=shape.vector)), slot)


def pack(module: llvm.Module, shape: Shape, width: int, padded: int, depth: int, unit: str) -> V:
    """``void pack(source, across stride, along stride, count, steps, target)``: panels of `width` lanes, `depth` deep.

    Panel p holds, for each step, the `padded` elements from p·width on. Lanes past `count` hold anything finite or not:
    they only reach rows and columns that nobody reads. `unit` tells where elements are consecutive.
    """
    name = f"pack_{shape.element}_{width}_{padded}_{unit}"
    function, new = _function(module, name, [POINTER, I64, I64, I64, I64, POINTER])
    if new:
        c = Code(module, function)
        {"across": _across, "along": _along, "none": _single}[unit](c, shape, width, padded, depth)
        c.b.ret_void()
    return function


def _panel(c: Code, shape: Shape, width: int, padded: int, depth: int, first: V) -> V:
    """Where the panel whose first lane is `first` goes."""
    number = c.b.sdiv(first, c.i64(width))
    return c.offset(c.function.args[5], c.b.mul(number, c.i64(padded * depth)), shape.element)


ROWS_AT_ONCE = 16
"""Rows copied at a time where panels lie across rows: few enough pages for the translation buffer."""


def _across(c: Code, shape: Shape, width: int, padded: int, depth: int) -> None:
    """Consecutive across the panel: copy vectors."""
    count, steps = c.function.args[3], c.function.args[4]
    with c.loop(c.i64(0), steps, ROWS_AT_ONCE) as start:
        stop = c.minimum(c.b.add(start, c.i64(ROWS_AT_ONCE)), steps)
        with c.loop(c.i64(0), count, width) as first:
            _copy_rows(c, shape, padded, first, (start, stop), _panel(c, shape, width, padded, depth, first))


def _copy_rows(c: Code, shape: Shape, padded: int, first: V, rows: tuple[V, V], panel: V) -> None:
    source, _, along, count, _, _ = c.function.args
    masks = [run_mask(c, c.b.add(first, c.i64(o)), count, shape.lanes) for o in range(0, padded, shape.lanes)]
    with c.loop(*rows) as step:
        for part, mask in enumerate(masks):
            offset = c.b.add(c.b.add(first, c.b.mul(step, along)), c.i64(part * shape.lanes))
            values = _masked(c, shape, source, offset, mask)
            target = c.b.add(c.b.mul(step, c.i64(padded)), c.i64(part * shape.lanes))
            c.store(values, c.offset(panel, target, shape.element), shape.lanes * shape.bytes)


def _along(c: Code, shape: Shape, width: int, padded: int, depth: int) -> None:
    """Consecutive along the depth: transpose square blocks in registers."""
    source, across, _, count, _, _ = c.function.args
    last = c.b.sub(count, c.i64(1))
    with c.loop(c.i64(0), count, width) as first:
        panel = _panel(c, shape, width, padded, depth, first)
        for group in range(0, padded, shape.lanes):
            rows = []
            for r in range(group, group + shape.lanes):
                row = c.minimum(c.b.add(first, c.i64(r)), last)
                rows.append(c.offset(source, c.b.mul(row, across), shape.element))
            _transpose_rows(c, shape, padded, group, rows, panel)


def _transpose_rows(c: Code, shape: Shape, padded: int, group: int, rows: list[V], panel: V) -> None:
    steps = c.function.args[4]
    with c.loop(c.i64(0), steps, shape.lanes) as step:
        mask = run_mask(c, step, steps, shape.lanes)
        block = transpose(c, [_masked(c, shape, row, step, mask) for row in rows])
        for j, values in enumerate(block):
            target = c.b.add(c.b.mul(c.b.add(step, c.i64(j)), c.i64(padded)), c.i64(group))
            c.store(values, c.offset(panel, target, shape.element), shape.lanes * shape.bytes)


def _single(c: Code, shape: Shape, width: int, padded: int, depth: int) -> None:
    """Consecutive nowhere: one element at a time."""
    source, across, along, count, steps, _ = c.function.args
    last = c.b.sub(count, c.i64(1))
    with c.loop(c.i64(0), count, width) as first:
        panel = _panel(c, shape, width, padded, depth, first)
        with c.loop(c.i64(0), steps) as step, c.loop(c.i64(0), c.i64(padded)) as lane:
            row = c.minimum(c.b.add(first, lane), last)
            offset = c.b.add(c.b.mul(row, across), c.b.mul(step, along))
            value = c.load(c.offset(source, offset, shape.element), shape.element, shape.bytes)
            target = c.b.add(c.b.mul(step, c.i64(padded)), lane)
            c.store(value, c.offset(panel, target, shape.element), shape.bytes)


def _masked(c: Code, shape: Shape, pointer: V, offset: V, mask: V) -> V:
    address = c.offset(pointer, offset, shape.element)
    arguments = [address, c.const(I32, shape.bytes), mask, c.const(shape.vector, 0.0)]
    return c.intrinsic("masked.load", arguments, shape.vector, [shape.vector, POINTER])


def transpose(c: Code, rows: list[V]) -> list[V]:
    """A square block of vectors, transposed by log₂ rounds of exchanging halves."""
    count = len(rows)
    step = count // 2
    while step:
        low = [lane if not lane & step else count + lane - step for lane in range(count)]
        high = [lane + step if not lane & step else count + lane for lane in range(count)]
        for i in range(count):
            if not i & step:
                a, b = rows[i], rows[i + step]
                rows[i], rows[i + step] = c.shuffle(a, b, low), c.shuffle(a, b, high)
        step //= 2
    return rows
