"""Writes the body of one Triton function: a top-level loop of the IR, each program one of its blocks."""

from __future__ import annotations

from collections.abc import Iterator

from helium import ir
from helium.emit import triton_terms as terms
from helium.emit.triton_scope import Scope
from helium.emit.triton_terms import ONE, Term, along
from helium.ir import axes
from helium.sizes import Dim
from helium.types import Block, DType, TileType, Value

_WIDTH = 88  # of an emitted line, about
_FOLDS = {"sum": "total", "prod": "product", "max": "largest", "min": "smallest"}


class Body:
    """Writes instructions into a scope."""

    def __init__(self, kernel: ir.Kernel, scope: Scope) -> None:
        self._kernel, self._scope = kernel, scope
        self._parameters = scope.parameters
        self._zeroed: set[Value] = set()  # loads, whose dead lanes are 0
        self._shared: frozenset[str] = frozenset()  # tensors that the function both reads and writes
        self._sizes: dict[Value, str] = {}  # sizes as the launcher passes them, of either integer type

    def grid(self, loop: ir.Loop) -> None:
        """The whole function: which block this program has, and what it does with it."""
        rest, scope = "tl.program_id(0)", self._scope
        self._shared = frozenset(_tensors(loop, ir.Load)) & frozenset(_tensors(loop, ir.Store))
        if len(loop.axes) > 1:
            scope.emit(f"program = {rest}", loop.line)
            rest = "program"
        for axis in reversed(loop.axes):  # the last axis is the fastest
            block, begin = self._parameters.block(Block(axis.name)), self._bound(axis.begin)
            last = axis is loop.axes[0]
            number = rest
            if not last:
                extent = self._bound(axis.end) + ("" if begin == "0" else f" - {begin}")
                scope.emit(f"{axis.name}_blocks = tl.cdiv({extent}, {block})", loop.line)
                number, rest = f"({rest} % {axis.name}_blocks)", f"({rest} // {axis.name}_blocks)"
            first = "" if begin == "0" else f"{begin} + "
            scope.emit(f"{axis.name}_begin = {first}{number}.to(tl.int64) * {block}", loop.line)
            self._lanes(axis, loop.line)
        self._body(loop.body, ())

    def _bound(self, bound: object) -> str:
        return self._scope.term(bound).atom if isinstance(bound, Value) else self._parameters.size(bound)  # type: ignore[arg-type]

    def _lanes(self, axis: ir.Axis, line: int) -> None:
        block = self._parameters.block(Block(axis.name))
        self._scope.emit(f"{axis.name}_index = {axis.name}_begin + tl.arange(0, {block}).to(tl.int64)", line)
        self._scope.emit(f"{axis.name}_live = {axis.name}_index < {self._bound(axis.end)}", line)

    def _body(self, body: tuple[ir.Instruction, ...], last: tuple[Value, ...]) -> None:
        before = self._scope.enter(body, last)
        for instruction in body:
            self._instruction(instruction)
        self._scope.leave(before)

    def _instruction(self, i: ir.Instruction) -> None:
        match i:
            case ir.Loop():
                self._loop(i)
            case ir.Store():
                self._store(i)
            case ir.Load():
                self._load(i)
            case ir.Reduce():
                self._reduce(i)
            case ir.Dot():
                self._dot(i)
            case ir.Constant() | ir.Argument() | ir.SizeValue() | ir.AxisValue():
                self._scope.bind(i.result, self._leaf(i))
            case ir.Unsqueeze() | ir.Broadcast() | ir.Transpose():
                self._reshape(i)
            case _:
                self._elementwise(i)

    # Loops.

    def _loop(self, loop: ir.Loop) -> None:
        scope, depth = self._scope, self._scope.depth
        variables = [self._carry(carried, loop.line) for carried in loop.carried]
        for axis in loop.axes:
            begin, end = self._bound(axis.begin), self._bound(axis.end)
            block = self._parameters.block(Block(axis.name))
            scope.emit(f"for {axis.name}_begin in range({begin}, {end}, {block}):", loop.line)
            scope.depth += 1
            self._lanes(axis, loop.line)
        before = scope.enter(loop.body, tuple(carried.update for carried in loop.carried))
        for carried, variable in zip(loop.carried, variables, strict=True):
            scope.own(carried.entry, variable)
        for instruction in loop.body:
            self._instruction(instruction)
        updates = [scope.whole(carried.update) for carried in loop.carried]
        changed = [pair for pair in zip(variables, updates, strict=True) if pair[0] != pair[1]]
        if changed:
            left, right = (", ".join(side) for side in zip(*changed, strict=True))
            scope.emit(f"{left} = {right}", _line_of(loop))
        scope.leave(before)
        scope.depth = depth
        for carried, variable in zip(loop.carried, variables, strict=True):
            scope.own(carried.result, variable)

    def _carry(self, carried: ir.Carried, line: int) -> str:
        """The variable of a carried value, holding its initial value; that one's own if nobody else reads it."""
        scope = self._scope
        variable = scope.spare(carried.initial)
        if variable is None:
            variable = scope.names.unique(carried.entry.hint or "carried")
            scope.emit(f"{variable} = {scope.whole(carried.initial)}", line)
        return variable

    # Memory.

    def _load(self, i: ir.Load) -> None:
        self._settle(i)
        pointer, mask = self._access(i.tensor, i.indices, i.result.type, i.mask, i.line)
        masked = [f"mask={mask}", "other=0"] if mask else []
        self._zeroed.add(i.result)
        text = _call("tl.load", pointer, *masked)
        self._scope.name(i.result, text, i.result.type.shape, f"{i.tensor}_tile", i.line)

    def _store(self, i: ir.Store) -> None:
        self._settle(i)
        pointer, mask = self._access(i.tensor, i.indices, i.value.type, i.mask, i.line)
        value = terms.typed(self._scope.term(i.value), i.value.type.dtype).expanded(len(i.value.type.shape))
        masked = [f"mask={mask}"] if mask else []
        self._scope.emit(_call("tl.store", pointer, value.text, *masked), i.line)

    def _settle(self, i: ir.Load | ir.Store) -> None:
        """Wait for the program's other threads, which may hold lanes of the same memory."""
        if i.tensor in self._shared:
            self._scope.emit("tl.debug_barrier()", i.line)

    def _access(
        self, tensor: str, indices: tuple[ir.Index, ...], kind: TileType, mask: Value | None, line: int
    ) -> tuple[str, str]:
        rank = len(kind.shape)
        conditions = self._scope.mask(kind.shape)
        offsets = [self._parameters.pointer(tensor)]
        for dim, index in enumerate(indices):
            place = self._place(tensor, index, kind, line)
            offsets.append(f"{place} * {self._parameters.stride(tensor, dim)}")
            if isinstance(index, ir.ValueIndex):
                size = self._parameters.size(Dim(tensor, dim))
                conditions += [f"({place} >= 0)", f"({place} < {size})"]
        if mask is not None:
            conditions.append(self._scope.term(mask).expanded(rank).atom)
        return " + ".join(offsets), " & ".join(conditions)

    def _place(self, tensor: str, index: ir.Index, kind: TileType, line: int) -> str:
        if isinstance(index, ir.ValueIndex):
            # A literal or a kernel argument may be narrower than the offsets that it makes.
            whole = self._scope.whole(index.value)
            text = f"tl.cast({whole}, tl.int64)" if index.value.type.dtype != "int64" else whole
            if text.isidentifier():
                return text
            # Read three times: for the address and for both of its bounds.
            name = self._scope.names.unique(f"{tensor}_place")
            self._scope.emit(f"{name} = {text}", line)
            return name
        return along(self._scope.index(kind.shape[index.dim]), index.dim, len(kind.shape))

    # Values.

    def _leaf(self, i: ir.Constant | ir.Argument | ir.SizeValue | ir.AxisValue) -> Term:
        if isinstance(i, ir.Constant):
            return Term(terms.literal(i.value), literal=True)
        if isinstance(i, ir.Argument):
            scalar = self._parameters.scalar(i.name)
            return Term(f"{scalar} != 0" if i.result.type.dtype == "bool" else scalar)
        if isinstance(i, ir.SizeValue):
            size = self._sizes[i.result] = self._parameters.size(i.size)
            return Term(f"tl.cast({size}, tl.int64)")
        return self._fact(i)

    def _fact(self, i: ir.AxisValue) -> Term:
        extent = Block(i.axis)
        block, begin = self._parameters.block(extent), f"{i.axis}_begin"
        if i.fact == "index":
            return Term(self._scope.index(extent), (extent,))
        if i.fact == "block_size":
            return Term(f"tl.cast({block}, tl.int64)")
        if i.fact == "begin":
            return Term(f"tl.cast({begin}, tl.int64)")
        axis = next(axis for axis in axes(self._kernel.loops) if axis.name == i.axis)
        if i.fact == "end":
            return Term(f"tl.cast(tl.minimum({begin} + {block}, {self._bound(axis.end)}), tl.int64)")
        first = self._bound(axis.begin)
        since = begin if first == "0" else f"({begin} - {first})"
        return Term(f"tl.cast({since} // {block}, tl.int64)")

    def _reshape(self, i: ir.Unsqueeze | ir.Broadcast | ir.Transpose) -> None:
        scope, source = self._scope, self._scope.term(i.source)
        if isinstance(i, ir.Broadcast) or not source.shape:
            scope.bind(i.result, source)
            return
        if isinstance(i, ir.Unsqueeze):
            source = source.expanded(len(i.source.type.shape))
            index = ", ".join("None" if d == i.dim else ":" for d in range(len(source.shape) + 1))
            shape = (*source.shape[: i.dim], ONE, *source.shape[i.dim :])
            scope.bind(i.result, Term(f"{source.atom}[{index}]", shape))
            return
        if i.source in self._zeroed:
            self._zeroed.add(i.result)
        text = f"tl.permute({scope.whole(i.source)}, {i.order})"
        scope.define(i.result, text, i.result.type.shape, "transposed", i.line)

    def _elementwise(self, i: ir.Cast | ir.Unary | ir.Binary | ir.Compare | ir.Select) -> None:
        scope, dtype, helper = self._scope, i.result.type.dtype, None
        sources = _operands(i)
        given = [scope.term(value).expanded(len(value.type.shape)) for value in sources]
        match i:
            case ir.Cast(source=source):
                given = [Term(self._sizes[source])] if source in self._sizes else given
                text = terms.cast(given[0], source.type.dtype, dtype)
            case ir.Unary(op=op):
                text, helper = terms.unary(op, given[0], dtype)
            case ir.Binary(op=op):
                text, helper = terms.binary(op, given[0], given[1], dtype)
            case ir.Compare(op=op):
                text = terms.compare(op, given[0], given[1])
            case ir.Select():
                text = terms.select(given[0], given[1], given[2], dtype)
        if helper:
            scope.helpers.add(helper)
        scope.define(i.result, text, terms.met(given), _hint(i), i.line)

    def _reduce(self, i: ir.Reduce) -> None:
        scope, kind = self._scope, i.source.type
        text, live = scope.whole(i.source), scope.live(kind.shape[i.dim])
        if live and not (i.op == "sum" and i.source in self._zeroed):
            identity = _filler(terms.identity(i.op, kind.dtype), kind.dtype)
            text = f"tl.where({along(live, i.dim, len(kind.shape))}, {text}, {identity})"
        text, helper = terms.reduction(i.op, text, i.dim, kind.dtype)
        if helper:
            scope.helpers.add(helper)
        scope.define(i.result, text, i.result.type.shape, _FOLDS[i.op], i.line)

    def _dot(self, i: ir.Dot) -> None:
        left, right = self._without_dead(i.left, 1), self._without_dead(i.right, 0)
        accumulator = f", {self._scope.whole(i.accumulator)}" if i.accumulator else ""
        # "ieee": torch does not round float32 to tf32 by default either.
        dtype = i.left.type.dtype
        precision = ', input_precision="ieee"' if dtype == "float32" else ""
        out = ", out_dtype=tl.float64" if dtype == "float64" else ""
        text = f"tl.dot({left}, {right}{accumulator}{precision}{out})"
        self._scope.define(i.result, text, i.result.type.shape, "dot", i.line, limit=100)

    def _without_dead(self, value: Value, dim: int) -> str:
        text, live = self._scope.whole(value), self._scope.live(value.type.shape[dim])
        if live is None or value in self._zeroed:
            return text
        return f"tl.where({along(live, dim, 2)}, {text}, {_filler('0.0', value.type.dtype)})"


def _filler(number: str, dtype: DType) -> str:
    """A literal beside a tile of `dtype`; Triton takes a bare one for float32."""
    return number if dtype == "float32" else terms.typed(Term(number, literal=True), dtype).text


def _tensors(loop: ir.Loop, kind: type[ir.Load] | type[ir.Store]) -> Iterator[str]:
    """The tensors that a loop reads, or that it writes."""
    for i in loop.body:
        if isinstance(i, kind):
            yield i.tensor
        elif isinstance(i, ir.Loop):
            yield from _tensors(i, kind)


def _call(function: str, *arguments: str) -> str:
    """A call, on one line or with an argument to each."""
    line = f"{function}({', '.join(arguments)})"
    return line if len(line) <= _WIDTH else "\n".join([f"{function}(", *(f"    {a}," for a in arguments), ")"])


def _operands(i: ir.Cast | ir.Unary | ir.Binary | ir.Compare | ir.Select) -> tuple[Value, ...]:
    match i:
        case ir.Cast() | ir.Unary():
            return (i.source,)
        case ir.Binary() | ir.Compare():
            return (i.left, i.right)
        case ir.Select():
            return (i.condition, i.then, i.otherwise)


def _hint(i: ir.Cast | ir.Unary | ir.Binary | ir.Compare | ir.Select) -> str:
    """What a result without a name of the user's is called."""
    match i:
        case ir.Cast():
            return i.result.type.dtype
        case ir.Select():
            return "where"
        case _:
            return i.op


def _line_of(loop: ir.Loop) -> int:
    """The line of the last instruction of a body."""
    return max([loop.line, *(i.line for i in loop.body)])
