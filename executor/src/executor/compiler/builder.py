"""Makes loops out of values: buffers, steps in order, and the moment at which a value gets into memory.

Within this package a nest is first made over whole buffers of the method: its `buffer` numbers are the method's.
`finish` turns those into parameters and gives equal nests one function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from executor import ir
from executor.compiler import index as ix
from executor.compiler.values import Indexes, Lazy, Origin, Pending, Shape, Value, whole

# A formula this long is put into memory when it has a second reader; one longer than the other in any case.
CHEAP, LONGEST = 0, 400
# Expressions nest no deeper than this.
DEEPEST = 40


@dataclass(slots=True)
class Slot:
    """A buffer in the making. `index` as in ir.Buffer; `constant` is set where nothing ever writes it."""

    name: str
    kind: ir.BufferKind
    dtype: str
    shape: Shape
    index: int = -1


@dataclass(frozen=True, slots=True)
class ExternalCall:
    """As ir.External, with its reference still in the making."""

    symbol: str
    digest: str
    sizes: tuple[int, ...]
    workspace: int
    reference: Builder


@dataclass(frozen=True, slots=True)
class RawStep:
    """A nest over the method's own buffer numbers, or a call of an external kernel on `buffers` of them."""

    work: ir.Nest | ExternalCall
    origin: Origin
    buffers: tuple[int, ...] = ()


@dataclass(slots=True)
class Builder:
    """One method in the making."""

    slots: list[Slot] = field(default_factory=list)
    steps: list[RawStep] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)

    def buffer(self, name: str, kind: ir.BufferKind, dtype: str, shape: Shape, index: int = -1) -> int:
        """A new buffer's number."""
        self.slots.append(Slot(name, kind, dtype, shape, index))
        return len(self.slots) - 1

    def temporary(self, dtype: str, shape: Shape) -> int:
        """A new temporary's number."""
        return self.buffer(f"t{len(self.slots)}", "temp", dtype, shape)

    def code(self, text: str) -> int:
        """The error code that stands for `text`."""
        return self.codes.setdefault(text, len(self.codes) + 1)

    def nest(self, outer: Shape, body: Sequence[ir.Statement], origin: Origin) -> None:
        """Add loops over `outer`; indexes in them are simplified."""
        made: list[ir.Statement] = []
        for statement in body:
            simple = _simplified(statement, outer)
            if isinstance(simple, ir.Store) and not simple.extents:
                simple = replace(simple, value=shallow(simple.value, made))
            made.append(simple)
        self.steps.append(RawStep(ir.Nest((), outer, tuple(made)), origin))

    def call(self, call: ExternalCall, buffers: Sequence[int], origin: Origin) -> None:
        """Add a call of an external kernel; its workspace is made here."""
        workspace = [self.temporary("uint8", (call.workspace,))] if call.workspace else []
        self.steps.append(RawStep(call, origin, (*buffers, *workspace)))

    def store(self, value: Value, buffer: int, place: Callable[[Indexes], ir.Expr] | None = None) -> None:
        """Write a value into a buffer: whole and dense, or each element at the flat index `place(its indexes)`."""
        if isinstance(value, Pending):
            at = value.coordinates(value.shape)
            domain, body, element = value.domain, value.body, value.value
        else:
            at = [ir.Axis(axis) for axis in range(len(value.shape))]
            domain, body, element = value.shape, (), value.at(at)
        index = place(at) if place else ix.linear(at, ix.contiguous(value.shape))
        self.nest(domain, (*body, ir.Store(buffer, (), index, element)), value.origin)

    def realise(self, value: Value) -> Lazy:
        """The value in memory: itself if it is a whole buffer, else a new temporary."""
        if isinstance(value, Lazy) and value.buffer is not None:
            return value
        buffer = self.temporary(value.dtype, value.shape)
        self.store(value, buffer)
        return whole(buffer, value.shape, value.dtype, value.origin)

    def lazy(self, value: Value) -> Lazy:
        """The value by formula: sums go into memory first."""
        if isinstance(value, Lazy) and value.cost <= LONGEST:
            return value
        return self.realise(value)


def shallow(expr: ir.Expr, body: list[ir.Statement]) -> ir.Expr:
    """`expr` with what lies deeper than a limit made by `Let` statements first, which are added to `body`.

    Whoever reads the loops later walks through expressions by recursion.
    """
    done: dict[int, tuple[ir.Expr, int]] = {}

    def go(node: ir.Expr) -> tuple[ir.Expr, int]:
        if id(node) not in done:
            depths = [0]

            def below(child: ir.Expr) -> ir.Expr:
                made, depth = go(child)
                depths.append(depth + 1)
                return made

            made, depth = ix.rebuild(node, below), max(depths)
            if depth >= DEEPEST and isinstance(made, ir.Op):
                body.append(ir.Let(made, made.dtype))
                made, depth = ir.Local(len(body) - 1), 0
            done[id(node)] = made, depth
        return done[id(node)]

    return go(expr)[0]


def _simplified(statement: ir.Statement, outer: Shape) -> ir.Statement:
    match statement:
        case ir.Let(value=value):
            return replace(statement, value=ix.Simplifier(outer)(value))
        case ir.Reduce(value=value, extents=extents):
            return replace(statement, value=ix.Simplifier((*outer, *numbers(extents)))(value))
        case ir.Store(index=index, value=value, extents=extents):
            simplify = ix.Simplifier((*outer, *numbers(extents)))
            return replace(statement, index=simplify(index), value=simplify(value))
    return statement


def numbers(dims: Iterable[ir.Dim]) -> Shape:
    """Sizes that are all whole numbers, as they are throughout this compiler."""
    made = tuple(dim for dim in dims if isinstance(dim, int))
    assert len(made) == len(tuple(dims)), dims
    return made
