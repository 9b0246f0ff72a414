"""What a program costs, counted from its loops: operations, bytes of memory traffic, arena beside its lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from executor import ir
from executor.manifest import ITEM_SIZES

if TYPE_CHECKING:
    from executor.program import Program


@dataclass(frozen=True, slots=True)
class Row:
    """Steps that run the same function for the same operation of the model; `flops` and `nbytes` are of all of them."""

    method: str
    function: int
    calls: int
    operation: str
    source: str
    flops: int
    nbytes: int
    external: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one method's temporaries: the plan's, and what any plan needs."""

    method: str
    arena: int
    lower_bound: int


@dataclass(frozen=True, slots=True)
class Report:
    """A program's cost; its text is a table. `notes` tell what became of custom kernels."""

    target: str
    rows: tuple[Row, ...]
    memory: tuple[Memory, ...]
    weights: int
    state: int
    code: int
    functions: int
    notes: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        lines = [
            f"target {self.target}: {self.code:,} bytes of code in {self.functions} functions, "
            f"{self.weights:,} of weights, {self.state:,} of state; compiled in {self.seconds:.1f} s"
        ]
        for memory in self.memory:
            flops, moved = (
                sum(getattr(row, what) for row in self.rows if row.method == memory.method) for what in _SUMS
            )
            lines += [
                f"method {memory.method}: arena {memory.arena:,} bytes (at least {memory.lower_bound:,}), "
                f"{flops / 1e6:,.2f} MFLOP, {moved / 1e6:,.2f} MB moved",
                f"  {'kernel':>8} {'calls':>5} {'MFLOP':>10} {'MB':>9}  operation, model line",
            ]
            lines += [f"  {_line(row)}" for row in self.rows if row.method == memory.method]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


_SUMS = ("flops", "nbytes")


def _line(row: Row) -> str:
    kernel = row.external or f"k{row.function}"
    return f"{kernel:>8} {row.calls:>5} {row.flops / 1e6:>10.3f} {row.nbytes / 1e6:>9.3f}  {row.operation} {row.source}"


def report_of(program: Program) -> Report:
    """The report of a program."""
    return Report(
        target=program.target,
        rows=tuple(row for method in program.ir.methods for row in _rows(program.ir, method)),
        memory=tuple(_memory(method) for method in program.ir.methods),
        weights=sum(memoryview(weight.data).nbytes for weight in program.weights),
        state=sum(entry.size for entry in program.state),
        code=len(program.code),
        functions=len(program.ir.functions),
        notes=program.notes,
        seconds=program.seconds,
    )


def _rows(program: ir.LoopProgram, method: ir.MethodBody) -> list[Row]:
    groups: dict[tuple[int, str, str], list[ir.Step]] = {}
    for step in method.block.steps:
        groups.setdefault((step.function, step.operation, step.source), []).append(step)
    return [_row(program, method, *key, steps) for key, steps in groups.items()]


def _row(
    program: ir.LoopProgram, method: ir.MethodBody, function: int, operation: str, source: str, steps: Sequence[ir.Step]
) -> Row:
    made = program.functions[function]
    sizes = [_bytes(method.block.buffers[number]) for number in steps[0].buffers]
    if isinstance(made, ir.External):
        return Row(method.name, function, len(steps), operation, source, 0, sum(sizes) * len(steps), made.symbol)
    flops, moved = cost_of(made, sizes)
    return Row(method.name, function, len(steps), operation, source, flops * len(steps), moved * len(steps), "")


def cost_of(nest: ir.Nest, sizes: Sequence[int]) -> tuple[int, int]:
    """(float operations, bytes moved if nothing is read twice) of a nest over buffers of `sizes` bytes."""
    outer, flops, points = _points(nest.outer), 0, [0] * len(nest.parameters)
    for statement in nest.body:
        inner = outer * _points(getattr(statement, "extents", ()))
        if isinstance(statement, ir.Dot):
            flops += 2 * outer * _points((statement.extent,))
            for operand in (statement.left, statement.right):
                points[operand.buffer] += prod(
                    _points((size,))
                    for size, stride in zip((*nest.outer, statement.extent), operand.strides, strict=True)
                    if stride
                )
            continue
        if isinstance(statement, ir.Store):
            points[statement.buffer] += inner
        flops += inner * isinstance(statement, ir.Reduce)
        for node in ir.walk(statement.value):
            flops += inner * (isinstance(node, ir.Op) and node.dtype == "float32" and node.name != "where")
            if isinstance(node, ir.Load):
                points[node.buffer] += inner
    items = [ITEM_SIZES[dtype] for dtype in nest.parameters]
    return flops, sum(min(size, count * item) for size, count, item in zip(sizes, points, items, strict=True))


def _memory(method: ir.MethodBody) -> Memory:
    assert isinstance(method.arena, int)
    return Memory(method.name, method.arena, lower_bound(method.block))


def lower_bound(block: ir.Block) -> int:
    """The most bytes of temporaries alive at one step: no plan has a smaller arena."""
    spans: dict[int, list[int]] = {}
    for place, step in enumerate(block.steps):
        for number in step.buffers:
            if block.buffers[number].kind == "temp":
                spans.setdefault(number, []).append(place)
    alive = [0] * (len(block.steps) + 1)
    for number, places in spans.items():
        for place in range(places[0], places[-1] + 1):
            alive[place] += _bytes(block.buffers[number])
    return max(alive)


def _bytes(buffer: ir.Buffer) -> int:
    return ITEM_SIZES[buffer.dtype] * _points(buffer.shape)


def _points(extents: Sequence[ir.Dim]) -> int:
    return prod(extent for extent in extents if isinstance(extent, int))
