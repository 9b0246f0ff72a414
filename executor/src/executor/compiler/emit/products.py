"""A nest around matrix products as a C function: blocks of sums by micro-kernel, then what rides on them.

The last outer axis takes the part of the columns; one that only the left operands follow may take that of the rows; any
other axis is a loop around the whole. Sums of a block go to an array on the stack, or to their destination where
nothing else happens to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from executor import ir
from executor.compiler import index as ix
from executor.compiler.builder import numbers
from executor.compiler.emit.expressions import Place, Writer
from executor.compiler.emit.nests import Emitted, function, header, stored_buffers, write_statement

# Columns of a block: enough rows of a weight to stay in the second-level cache while all left rows pass by.
_FEW_ROWS, _COLUMNS_FOR_FEW, _COLUMNS_FOR_MANY, _ROWS_OF_BLOCK = 8, 256, 64, 48


@dataclass(frozen=True, slots=True)
class Plan:
    """How a nest is run: the micro-kernel for each product, and its axes (`row` is None for a single row)."""

    kernels: tuple[str, ...]
    dots: tuple[ir.Dot, ...]
    row: int | None
    column: int


def plan_of(nest: ir.Nest) -> Plan | None:
    """The plan of a nest with products; None if its operands lie so that no micro-kernel fits."""
    dots = [statement for statement in nest.body if isinstance(statement, ir.Dot)]
    if not nest.outer or any(isinstance(statement, ir.Reduce) for statement in nest.body):
        return None
    column = len(nest.outer) - 1
    turned = tuple(dot if dot.right.strides[column] else replace(dot, left=dot.right, right=dot.left) for dot in dots)
    kernels = tuple(_kernel(dot, column) for dot in turned)
    if not all(kernels) or any(dot.left.strides[column] for dot in turned):
        return None
    rows = [axis for axis in range(column) if all(not dot.right.strides[axis] for dot in turned)]
    rows = [axis for axis in rows if any(dot.left.strides[axis] for dot in turned)]
    return Plan(kernels, turned, rows[-1] if rows else None, column)


def _kernel(dot: ir.Dot, column: int) -> str:
    if dot.left.strides[-1] == 1 and dot.right.strides[-1] == 1:
        return "edge_rows"
    return "edge_columns" if dot.right.strides[column] == 1 else ""


def product_function(name: str, nest: ir.Nest, plan: Plan) -> Emitted:
    """A nest with products as a C function."""
    outer = numbers(nest.outer)
    row, column = plan.row, plan.column
    m, n = (1 if row is None else outer[row]), outer[column]
    rows, columns = _block(m, n)
    around = [axis for axis in range(len(outer)) if axis not in (row, column)]
    direct = _direct(nest, plan, len(outer))
    lines: list[str] = []
    for axis in around:
        lines += header(f"i{axis}", outer[axis])
    lines += [f"for (int64_t n0 = 0; n0 < {n}; n0 += {columns}) {{", f"const int64_t n = {_least(n, columns)};"]
    lines += [f"for (int64_t m0 = 0; m0 < {m}; m0 += {rows}) {{", f"const int64_t m = {_least(m, rows, 'm0')};"]
    writer = _writer(nest, plan)
    if direct is None:
        lines += [f"float d{number}[{rows} * {columns}];" for number in range(len(plan.dots))]
        lines += [
            _call(dot, kernel, plan, outer, f"d{i}, {columns}")
            for i, (dot, kernel) in enumerate(zip(plan.dots, plan.kernels, strict=True))
        ]
        lines += _epilogue(writer, nest, plan, columns)
    else:
        lines.append(_call(plan.dots[0], plan.kernels[0], plan, outer, direct))
    lines += ["}", "}", *("}" for _ in around)]
    return function(name, nest, lines, writer.fails)


def _block(m: int, n: int) -> tuple[int, int]:
    columns = _COLUMNS_FOR_FEW if m <= _FEW_ROWS else _COLUMNS_FOR_MANY
    return min(m, _ROWS_OF_BLOCK), min(n, columns)


def _least(total: int, block: int, name: str = "n0") -> str:
    return f"{total} - {name} < {block} ? {total} - {name} : {block}" if total % block else str(block)


def _offset(operand: ir.Strided, plan: Plan, name: str) -> str:
    """Where a block's operand begins."""
    terms = [f"{name}{operand.buffer} + {operand.offset}"]
    for axis, stride in enumerate(operand.strides[:-1]):
        position = {plan.row: "m0", plan.column: "n0"}.get(axis, f"i{axis}")
        terms += [f"{position} * {stride}"] if stride else []
    return " + ".join(terms)


def _call(dot: ir.Dot, kernel: str, plan: Plan, outer: Sequence[int], target: str) -> str:
    left, right = dot.left, dot.right
    lda, step, extent = left.strides[plan.row] if plan.row is not None else 0, left.strides[-1], dot.extent
    first, second = _offset(left, plan, "b"), _offset(right, plan, "b")
    if kernel == "edge_rows":
        return f"edge_rows(m, n, {dot.extent}, {first}, {lda}, {second}, {right.strides[plan.column]}, {target});"
    return f"edge_columns(m, n, {extent}, {first}, {lda}, {step}, {second}, {right.strides[-1]}, {target});"


def _direct(nest: ir.Nest, plan: Plan, rank: int) -> str | None:
    """The destination of the sums if they are stored as they are, in memory order along the columns; else None."""
    match nest.body:
        case (ir.Dot(), ir.Store(buffer=buffer, extents=(), index=index, value=ir.Local(index=0))):
            found = ix.affine(index, rank)
            if found is None or found[1][plan.column] != 1:
                return None
            target = ir.Strided(buffer, found[0], (*found[1], 0))
            return f"{_offset(target, plan, 'b')}, {found[1][plan.row] if plan.row is not None else 0}"
    return None


def _writer(nest: ir.Nest, plan: Plan) -> Writer:
    """Expressions of the epilogue; all are declared in its innermost loop, for the compiler to move."""
    return Writer(nest, [], stored_buffers(nest))


def _epilogue(writer: Writer, nest: ir.Nest, plan: Plan, columns: int) -> list[str]:
    """What happens to a block's sums, row by row."""
    row, column = plan.row, plan.column
    place = Place(len(nest.outer))
    count = 0
    for number, statement in enumerate(nest.body):
        if isinstance(statement, ir.Dot):
            writer.names[number] = f"d{count}[{'r * ' + str(columns) + ' + ' if row is not None else ''}c]"
            count += 1
        else:
            write_statement(writer, place, number, statement, len(nest.outer))
    inner = ["#pragma GCC ivdep", "for (int64_t c = 0; c < n; c++) {", f"    const int64_t i{column} = n0 + c;"]
    inner += [*(f"    {line}" for line in place.lines), "}"]
    if row is None:
        return inner
    return [
        "for (int64_t r = 0; r < m; r++) {", f"    const int64_t i{row} = m0 + r;", *(f"    {x}" for x in inner), "}"
    ]  # fmt: skip
