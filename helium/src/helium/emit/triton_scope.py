"""What one emitted Triton function knows while it is written: its lines, its values, and which of them have names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Final

from helium import ir
from helium.emit.triton_parameters import Names, Parameters, index_name
from helium.emit.triton_terms import DTYPES, Term, along
from helium.types import Block, Extent, Value, Whole

_INLINE: Final = 64  # characters; a longer expression is easier to read under a name


class Scope:
    """Writes lines, and keeps a term for each value."""

    def __init__(self, parameters: Parameters, names: Names, comment: Callable[[int], str]) -> None:
        self.parameters, self.names = parameters, names
        self.helpers: set[str] = set()
        self._owned: dict[Value, int] = {}
        self._body = self._bodies = 0
        self._head: list[str] = []
        self._lines: list[str] = []
        self._wholes: dict[Whole, str] = {}
        self._terms: dict[Value, Term] = {}
        self._once: frozenset[Value] = frozenset()
        self._comment, self._last = comment, 0
        self.depth = 1

    @property
    def text(self) -> str:
        """The function's body."""
        return "\n".join([*self._head, *self._lines])

    def emit(self, line: str, user_line: int) -> None:
        """Add a line, under the user's line where that changes."""
        indent = "    " * self.depth
        if user_line != self._last and (comment := self._comment(user_line)):
            self._lines.append(f"{indent}# {comment}")
        self._last = user_line
        self._lines += [indent + part for part in line.split("\n")]

    def enter(self, body: tuple[ir.Instruction, ...], last: tuple[Value, ...]) -> tuple[frozenset[Value], int]:
        """Begin a body; `last` are read at its end. Gives what to hand to :meth:`leave`."""
        before, counts = (self._once, self._body), Counter(_reads(body))
        self._bodies += 1
        self._body = self._bodies
        counts.update(last)
        inside = Counter([*(v for i in body for v in _direct(i)), *last])
        self._once = frozenset(v for v, count in counts.items() if count == 1 and inside[v] == 1)
        return before

    def leave(self, before: tuple[frozenset[Value], int]) -> None:
        """End a body."""
        self._once, self._body = before

    def own(self, value: Value, variable: str) -> None:
        """Let a variable hold `value`, as a whole and nothing else."""
        self._owned[value] = self._body
        self.bind(value, Term(variable, value.type.shape))

    def spare(self, value: Value) -> str | None:
        """The variable of a value that may be overwritten: of this body, and read here for the last time."""
        free = self._owned.get(value) == self._body and value in self._once
        return self._terms[value].text if free else None

    def bind(self, value: Value, term: Term) -> None:
        """Let `value` be written as `term`."""
        self._terms[value] = term

    def term(self, value: Value) -> Term:
        """How `value` is written."""
        return self._terms[value]

    def define(
        self, value: Value, text: str, shape: tuple[Extent, ...], hint: str, line: int, limit: int = _INLINE
    ) -> None:
        """A computed value: written where it is read if that is once and short, under a name otherwise."""
        if value in self._once and not value.hint and len(text) <= limit:
            self.bind(value, Term(text, shape))
        else:
            self.name(value, text, shape, hint, line)

    def name(self, value: Value, text: str, shape: tuple[Extent, ...], hint: str, line: int) -> None:
        """A computed value, under a name."""
        name = self.names.unique(value.hint or hint)
        self.emit(f"{name} = {text}", line)
        if shape == value.type.shape:
            self.own(value, name)
        else:
            self.bind(value, Term(name, shape))

    def lanes(self, shape: tuple[Extent, ...]) -> str:
        """A shape as Triton takes it."""
        inner = ", ".join(map(self.parameters.block, shape))
        return f"({inner},)" if len(shape) == 1 else f"({inner})"

    def whole(self, value: Value) -> str:
        """`value` with every lane there, not left to broadcasting."""
        term, shape, dtype = self.term(value), value.type.shape, DTYPES[value.type.dtype]
        if not term.shape and (shape or term.literal):
            return f"tl.full({self.lanes(shape) if shape else '()'}, {term.text}, {dtype})"
        if term.shape != shape:
            return f"tl.broadcast_to({term.expanded(len(shape)).text}, {self.lanes(shape)})"
        return term.text

    def index(self, extent: Extent) -> str:
        """The indices of an extent's lanes, int64[lanes]."""
        return self._whole(extent) if isinstance(extent, Whole) else f"{_axis(extent)}_index"

    def live(self, extent: Extent) -> str | None:
        """Which lanes of an extent are live; None where all are."""
        if isinstance(extent, Whole):
            return self._whole(extent).replace("_index", "_live")
        return f"{extent.axis}_live" if isinstance(extent, Block) else None

    def mask(self, shape: tuple[Extent, ...]) -> list[str]:
        """The conditions under which a lane of a tile is live."""
        lives = [(dim, live) for dim, extent in enumerate(shape) if (live := self.live(extent))]
        return [along(live, dim, len(shape)) for dim, live in lives]

    def _whole(self, extent: Whole) -> str:
        if extent not in self._wholes:
            name = self._wholes[extent] = self.names.unique(index_name(extent))
            size, block = self.parameters.size(extent.size), self.parameters.block(extent)
            self._head.append(f"    {name} = tl.arange(0, {block}).to(tl.int64)")
            self._head.append(f"    {name.replace('_index', '_live')} = {name} < {size}")
        return self._wholes[extent]


def _axis(extent: Extent) -> str:
    assert isinstance(extent, Block), f"no indices run over {extent}"
    return extent.axis


def _direct(instruction: ir.Instruction) -> Iterator[Value]:
    """The values that an instruction reads itself; of a loop, not those that its body reads."""
    if isinstance(instruction, ir.Loop):
        yield from (carried.initial for carried in instruction.carried)
        yield from (end for axis in instruction.axes for end in (axis.begin, axis.end) if isinstance(end, Value))
        return
    for field in fields(instruction):
        if field.name != "result":
            found = getattr(instruction, field.name)
            items = found if field.name == "indices" else (found,)
            values = (item.value if isinstance(item, ir.ValueIndex) else item for item in items)
            yield from (value for value in values if isinstance(value, Value))


def _reads(body: tuple[ir.Instruction, ...]) -> Iterator[Value]:
    """The values that a body reads, loops in it included."""
    for instruction in body:
        yield from _direct(instruction)
        if isinstance(instruction, ir.Loop):
            yield from _reads(instruction.body)
            yield from (carried.update for carried in instruction.carried)
