"""From steps over a method's own buffers to the loop program: fewer axes, parameters, one function for equal nests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from executor import ir
from executor.compiler import index as ix
from executor.compiler.builder import Builder, ExternalCall, numbers


@dataclass(slots=True)
class Functions:
    """The functions of a program, each once."""

    made: list[ir.Function] = field(default_factory=list)
    _numbers: dict[ir.Function, int] = field(default_factory=dict)

    def add(self, function: ir.Function) -> int:
        """The number of a function."""
        if function not in self._numbers:
            self._numbers[function] = len(self.made)
            self.made.append(function)
        return self._numbers[function]


def block_of(builder: Builder, functions: Functions) -> ir.Block:
    """What `builder` holds, without buffers that nothing uses."""
    steps = []
    function: ir.Function
    for raw in builder.steps:
        if isinstance(raw.work, ExternalCall):
            function, buffers = _external(raw.work, raw.buffers, builder, functions), raw.buffers
        else:
            function, buffers = parametrised(fewer_axes(raw.work), builder)
        steps.append(ir.Step(functions.add(function), buffers, raw.origin.operation, raw.origin.source))
    return compacted(builder, steps)


def _external(call: ExternalCall, buffers: Sequence[int], builder: Builder, functions: Functions) -> ir.External:
    reference = block_of(call.reference, functions)
    dtypes = tuple(builder.slots[buffer].dtype for buffer in buffers)
    return ir.External(dtypes, call.symbol, call.digest, call.sizes, call.workspace, reference)


def compacted(builder: Builder, steps: Sequence[ir.Step]) -> ir.Block:
    """Only the buffers that a step uses, numbered anew."""
    used = sorted({buffer for step in steps for buffer in step.buffers})
    place = {buffer: position for position, buffer in enumerate(used)}
    slots = [builder.slots[buffer] for buffer in used]
    buffers = tuple(ir.Buffer(slot.name, slot.kind, slot.dtype, slot.shape, slot.index) for slot in slots)
    return ir.Block(buffers, tuple(replace(step, buffers=tuple(place[b] for b in step.buffers)) for step in steps))


def parametrised(nest: ir.Nest, builder: Builder) -> tuple[ir.Nest, tuple[int, ...]]:
    """The nest over parameters, and the buffers that these are; stored ones first."""
    stored = [statement.buffer for statement in nest.body if isinstance(statement, ir.Store)]
    order = list(dict.fromkeys([*stored, *(buffer for statement in nest.body for buffer in _buffers(statement))]))
    place = {buffer: position for position, buffer in enumerate(order)}
    body = tuple(_renumbered(statement, place) for statement in nest.body)
    return ir.Nest(tuple(builder.slots[buffer].dtype for buffer in order), nest.outer, body), tuple(order)


def expressions(statement: ir.Statement) -> tuple[ir.Expr, ...]:
    """The expressions of a statement."""
    match statement:
        case ir.Let(value=value) | ir.Reduce(value=value):
            return (value,)
        case ir.Store(index=index, value=value):
            return index, value
    return ()


def _buffers(statement: ir.Statement) -> Iterator[int]:
    if isinstance(statement, ir.Dot):
        yield statement.left.buffer
        yield statement.right.buffer
    for expr in expressions(statement):
        yield from (node.buffer for node in ir.walk(expr) if isinstance(node, ir.Load))


def _renumbered(statement: ir.Statement, place: dict[int, int]) -> ir.Statement:
    def change(expr: ir.Expr) -> ir.Expr:
        made = ix.rebuild(expr, change)
        return replace(made, buffer=place[made.buffer]) if isinstance(made, ir.Load) else made

    match statement:
        case ir.Let(value=value) | ir.Reduce(value=value):
            return replace(statement, value=change(value))
        case ir.Dot(left=left, right=right):
            left, right = (replace(operand, buffer=place[operand.buffer]) for operand in (left, right))
            return replace(statement, left=left, right=right)
        case ir.Store(buffer=buffer, index=index, value=value):
            return replace(statement, buffer=place[buffer], index=change(index), value=change(value))


def fewer_axes(nest: ir.Nest) -> ir.Nest:
    """The nest without axes of one point, and with neighbouring axes joined where that costs no arithmetic."""
    for axis in reversed(range(len(nest.outer))):
        if nest.outer[axis] == 1:
            nest = _without(nest, axis)
    axis = len(nest.outer) - 2
    while axis >= 0:
        joined = _joined(nest, axis)
        nest = nest if joined is None else joined
        axis -= 1
    return nest


def _without(nest: ir.Nest, axis: int) -> ir.Nest:
    """The nest without an outer axis of one point, which no index depends on."""
    outer = (*nest.outer[:axis], *nest.outer[axis + 1 :])
    body = tuple(_dropped(statement, axis, _arity(statement, len(nest.outer))) for statement in nest.body)
    return replace(nest, outer=outer, body=body)


def _dropped(statement: ir.Statement, axis: int, rank: int) -> ir.Statement:
    mapping: dict[ir.Expr, ir.Expr] = {ir.Axis(other): ir.Axis(other - 1) for other in range(axis + 1, rank)}
    mapping[ir.Axis(axis)] = ix.const(0)
    if isinstance(statement, ir.Dot):
        left, right = (_strides(operand, axis, axis + 1, ()) for operand in (statement.left, statement.right))
        return replace(statement, left=left, right=right)
    return _changed(statement, mapping, None)


def _joined(nest: ir.Nest, axis: int) -> ir.Nest | None:
    """The nest with outer axes `axis` and `axis + 1` as one; None if that would need arithmetic."""
    first, second = numbers(nest.outer[axis : axis + 2])
    outer = (*nest.outer[:axis], first * second, *nest.outer[axis + 2 :])
    body = []
    for statement in nest.body:
        changed = _statement_joined(statement, axis, second, numbers(outer))
        if changed is None:
            return None
        body.append(changed)
    return replace(nest, outer=outer, body=tuple(body))


def _statement_joined(statement: ir.Statement, axis: int, second: int, outer: tuple[int, ...]) -> ir.Statement | None:
    if isinstance(statement, ir.Dot):
        operands = (statement.left, statement.right)
        if any(operand.strides[axis] != operand.strides[axis + 1] * second for operand in operands):
            return None
        left, right = (_strides(operand, axis, axis + 2, (operand.strides[axis + 1],)) for operand in operands)
        return replace(statement, left=left, right=right)
    rank = _arity(statement, len(outer) + 1)
    mapping: dict[ir.Expr, ir.Expr] = {ir.Axis(other): ir.Axis(other - 1) for other in range(axis + 2, rank)}
    mapping[ir.Axis(axis)] = ix.quotient(ir.Axis(axis), second)
    mapping[ir.Axis(axis + 1)] = ix.remainder(ir.Axis(axis), second)
    inner = numbers(statement.extents) if isinstance(statement, ir.Reduce | ir.Store) else ()
    made = _changed(statement, mapping, ix.Simplifier((*outer, *inner)))
    return made if _divisions(made) <= _divisions(statement) else None


def _strides(operand: ir.Strided, start: int, end: int, between: tuple[ir.Dim, ...]) -> ir.Strided:
    return replace(operand, strides=(*operand.strides[:start], *between, *operand.strides[end:]))


def _changed(statement: ir.Statement, mapping: dict[ir.Expr, ir.Expr], simplify: ix.Simplifier | None) -> ir.Statement:
    def change(expr: ir.Expr) -> ir.Expr:
        made = ix.substitute(expr, mapping)
        return simplify(made) if simplify else made

    match statement:
        case ir.Let(value=value) | ir.Reduce(value=value):
            return replace(statement, value=change(value))
        case ir.Store(index=index, value=value):
            return replace(statement, index=change(index), value=change(value))
    return statement


def _arity(statement: ir.Statement, outer: int) -> int:
    """How many axes a statement has."""
    return outer + (len(statement.extents) if isinstance(statement, ir.Reduce | ir.Store) else 0)


def _divisions(statement: ir.Statement) -> int:
    return sum(
        isinstance(node, ir.Op) and node.name in ("idiv", "imod")
        for expr in expressions(statement)
        for node in ir.walk(expr)
    )
