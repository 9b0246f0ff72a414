"""Facts about a grid loop that its lowering needs: axes that run point by point, last uses, costly tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from helium import ir
from helium.rewrite import operands
from helium.types import Block, Fixed, Value

Definitions: TypeAlias = dict[Value, ir.Instruction]
"""The instruction that defines each value."""
_COSTLY = frozenset({"exp", "log", "tanh", "erf", "sin", "cos"})


def walk(body: tuple[ir.Instruction, ...]) -> Iterator[ir.Instruction]:
    """Every instruction of a body, those of nested loops too."""
    for instruction in body:
        yield instruction
        if isinstance(instruction, ir.Loop):
            yield from walk(instruction.body)


def point_axes(loop: ir.Loop) -> frozenset[str]:
    """The grid axes to run one index at a time, so that tiles lose that dimension.

    An axis that is reduced or multiplied over keeps its lanes. Of a grid on which nothing else has lanes, the axis that
    runs along memory keeps them too: it is the one to make vectors of.
    """
    grid = {axis.name for axis in loop.axes}
    instructions = list(walk(loop.body))
    kept = {name for i in instructions for name in _kept(i)}
    points = grid - kept
    extents = {extent for i in instructions if isinstance(i, ir.Store) for extent in i.value.type.shape}
    extents |= {extent for i in instructions if isinstance(i, ir.Reduce) for extent in i.source.type.shape}
    others = [e for e in extents if not (isinstance(e, Block) and e.axis in points) and str(e) != "1"]
    if not others and points:
        points -= {_along_memory(instructions, loop)}
    return frozenset(points)


def _kept(i: ir.Instruction) -> set[str]:
    if isinstance(i, ir.Reduce):
        extent = i.source.type.shape[i.dim]
        return {extent.axis} if isinstance(extent, Block) else set()
    if isinstance(i, ir.Dot):
        shapes = (*i.left.type.shape, *i.right.type.shape)
        return {extent.axis for extent in shapes if isinstance(extent, Block)}
    return set()


def _along_memory(instructions: list[ir.Instruction], loop: ir.Loop) -> str:
    """The grid axis that most often indexes a last dimension; the last axis if none does."""
    votes = {axis.name: 0 for axis in loop.axes}
    for i in instructions:
        if isinstance(i, (ir.Load, ir.Store)) and isinstance(i.indices[-1], ir.AxisIndex):
            axis = i.indices[-1].axis
            if axis in votes:
                votes[axis] += 2 if isinstance(i, ir.Store) else 1
    return max(reversed(votes), key=lambda name: votes[name])


def is_costly(i: ir.Instruction | None) -> bool:
    """Whether computing it twice costs more than keeping it in scratch."""
    return (isinstance(i, ir.Unary) and i.op in _COSTLY) or (isinstance(i, ir.Binary) and i.op == "pow")


def is_lazy(i: ir.Instruction | None) -> bool:
    """Whether a tile made by it can be computed wherever it is needed; so can a reduction over a single lane."""
    if isinstance(i, ir.Reduce):
        return i.source.type.shape[i.dim] == Fixed(1)
    return i is not None and not isinstance(i, (ir.Dot, ir.Loop, ir.Store))


def last_uses(body: tuple[ir.Instruction, ...], ends: tuple[Value, ...], definitions: Definitions) -> dict[Value, int]:
    """The position of the last instruction that needs each value, also through lazy ones; `ends` come after all."""
    last: dict[Value, int] = {}

    def mark(value: Value, position: int) -> None:
        if last.get(value, -1) >= position:
            return
        last[value] = position
        definition = definitions.get(value)
        if definition is not None and is_lazy(definition):
            for operand in operands(definition):
                mark(operand, position)

    for position, instruction in enumerate(body):
        if not is_lazy(instruction):
            for operand in operands(instruction):
                mark(operand, position)
    for value in ends:
        mark(value, len(body))
    return last


def reachable(value: Value, definitions: Definitions, known: set[Value]) -> Iterator[Value]:
    """`value` and what it is lazily computed from, down to values already `known`."""
    stack, seen = [value], set[Value]()
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        yield current
        definition = definitions.get(current)
        if current not in known and definition is not None and is_lazy(definition):
            stack.extend(operands(definition))
