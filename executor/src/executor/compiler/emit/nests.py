"""A nest as a C function: loops, with what does not change in them moved out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from executor import ir
from executor.compiler.builder import numbers
from executor.compiler.emit.expressions import C_TYPES, STORED, Place, Writer, literal

_COMBINE = {"sum": "+", "prod": "*", "any": "|", "all": "&"}
_START = {"sum": 0, "prod": 1, "any": 0, "all": 1}


@dataclass(frozen=True, slots=True)
class Emitted:
    """A C function's text; `fails` if it returns an error code, else it returns nothing."""

    text: str
    fails: bool


def stored_buffers(nest: ir.Nest) -> frozenset[int]:
    """The parameters that a nest writes."""
    return frozenset(statement.buffer for statement in nest.body if isinstance(statement, ir.Store))


def signature(nest: ir.Nest) -> str:
    """The parameters as C."""
    stored = stored_buffers(nest)
    return ", ".join(
        f"{'' if number in stored else 'const '}{STORED[dtype]} *restrict b{number}"
        for number, dtype in enumerate(nest.parameters)
    )


def nest_function(name: str, nest: ir.Nest) -> Emitted:
    """A nest without products as a C function."""
    outer = numbers(nest.outer)
    places = [Place(depth) for depth in range(len(outer) + 1)]
    writer = Writer(nest, places, stored_buffers(nest))
    # The innermost outer level also holds the statements, in order, so hoisted lines must come before those that use
    # them: they do, as each line is written when first needed.
    for number, statement in enumerate(nest.body):
        write_statement(writer, places[-1], number, statement, len(outer))
    return function(name, nest, loops(outer, places), writer.fails)


def function(name: str, nest: ir.Nest, lines: Sequence[str], fails: bool) -> Emitted:
    """A whole function around a body."""
    tail = ["return 0;"] if fails else []
    text = "\n".join(["    " + line for line in [*lines, *tail]])
    return Emitted(f"EDGE_KERNEL {'int' if fails else 'void'} {name}({signature(nest)})\n{{\n{text}\n}}\n", fails)


def loops(extents: Sequence[int], places: Sequence[Place], first: int = 0) -> list[str]:
    """Nested loops over axes from number `first` on, with each level's lines in its place."""
    lines = list(places[0].lines)
    if extents:
        inner = loops(extents[1:], places[1:], first + 1)
        vector = len(extents) == 1 and not any("for (" in line or "return" in line for line in inner)
        lines += header(f"i{first}", extents[0], "#pragma GCC ivdep" if vector else "")
        lines += [f"    {line}" for line in inner]
        lines.append("}")
    return lines


def header(name: str, extent: int | str, pragma: str = "") -> list[str]:
    """The head of a counting loop."""
    return [*([pragma] if pragma else []), f"for (int64_t {name} = 0; {name} < {extent}; {name}++) {{"]


def write_statement(writer: Writer, place: Place, number: int, statement: ir.Statement, depth: int) -> None:
    """Write a statement into the innermost outer place."""
    match statement:
        case ir.Let(value=value, dtype=dtype):
            name = f"l{number}"
            text = writer.inside(place)(value)
            place.lines.append(f"const {C_TYPES[dtype]} {name} = {text};")
            writer.names[number] = name
        case ir.Reduce():
            _write_reduce(writer, place, number, statement, depth)
        case ir.Store():
            _write_store(writer, place, statement, depth)


def _write_store(writer: Writer, place: Place, statement: ir.Store, depth: int) -> None:
    extents = numbers(statement.extents)
    levels = [Place(depth + level) for level in range(len(extents) + 1)]
    body = levels[-1] if extents else place
    inner = writer.inside(body)
    index, value = inner(statement.index), inner(statement.value)
    body.lines.append(f"b{statement.buffer}[{index}] = {value};")
    if extents:
        place.lines += loops(extents, levels, depth)


def _write_reduce(writer: Writer, place: Place, number: int, statement: ir.Reduce, depth: int) -> None:
    extents = numbers(statement.extents)
    levels = [Place(depth + level) for level in range(len(extents) + 1)]
    body = levels[-1]
    value = writer.inside(body)(statement.value)
    name = writer.names[number] = f"l{number}"
    before, step, pragma, after = _reduction(statement, name, value, _flat(extents, depth))
    body.lines += step
    place.lines += before
    made = loops(extents, levels, depth)
    if pragma and extents and not any(" return " in line for line in made):
        made = list(_with_pragma(made, pragma))
    place.lines += [*(made if extents else body.lines), *after]


def _with_pragma(lines: Sequence[str], pragma: str) -> Iterator[str]:
    """The innermost loop's own pragma in the place of the one that it has."""
    heads = [place for place, line in enumerate(lines) if line.lstrip().startswith("for (")]
    for place, line in enumerate(lines):
        if line.strip() == "#pragma GCC ivdep":
            continue
        if place == heads[-1]:
            yield pragma
        yield line


def _flat(extents: Sequence[int], depth: int) -> str:
    text = "0"
    for axis, extent in enumerate(extents):
        text = f"i{depth + axis}" if axis == 0 else f"({text}) * {extent} + i{depth + axis}"
    return text


def _reduction(statement: ir.Reduce, name: str, value: str, flat: str) -> tuple[list[str], list[str], str, list[str]]:
    """(lines before, lines in the innermost loop, its pragma, lines after)"""
    c_type, how = C_TYPES[statement.dtype], statement.op
    if how in _COMBINE:
        sign = _COMBINE[how]
        start = literal(_START[how], statement.dtype)
        return (
            [f"{c_type} {name} = {start};"],
            [f"{name} = {name} {sign} {value};"],
            f"#pragma omp simd reduction({sign}:{name})",
            [],
        )
    greater = ">" if how in ("max", "argmax") else "<"
    floats = statement.dtype == "float32"
    if how in ("max", "min"):
        start = ("(-INFINITY)" if how == "max" else "INFINITY") if floats else _limit(statement.dtype, how)
        before, step = [f"{c_type} {name} = {start};"], [f"{name} = {value} {greater} {name} ? {value} : {name};"]
        if not floats:
            return before, step, f"#pragma omp simd reduction({how}:{name})", []
        before.append(f"int32_t {name}n = 0;")
        step.append(f"{name}n |= {value} != {value};")
        after = [f"if ({name}n) {name} = NAN;"]
        return before, step, f"#pragma omp simd reduction({how}:{name}) reduction(|:{name}n)", after
    better = f"{value} {greater} {name}v"
    if floats:
        better = f"({better} || ({value} != {value} && {name}v == {name}v))"
    before = [f"int64_t {name} = -1;", f"{c_type} {name}v = 0;"]
    return before, [f"if ({name} < 0 || {better}) {{ {name} = {flat}; {name}v = {value}; }}"], "", []


def _limit(dtype: str, how: str) -> str:
    limits = {"int64": ("INT64_MIN", "INT64_MAX"), "int32": ("INT32_MIN", "INT32_MAX"), "uint8": ("0", "255")}
    return limits.get(dtype, ("0", "1"))[0 if how == "max" else 1]
