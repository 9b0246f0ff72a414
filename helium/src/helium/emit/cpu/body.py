"""Lowers the body of a grid loop: gathers stores and reductions into passes, keeps what must be kept, nests loops."""

from __future__ import annotations

from collections.abc import Sequence

from helium import ir
from helium.emit.cpu import analysis
from helium.emit.cpu.code import V
from helium.emit.cpu.evaluate import Evaluator
from helium.emit.cpu.frame import Frame
from helium.emit.cpu.gemm import Gemm
from helium.emit.cpu.memory import store
from helium.emit.cpu.passes import Keep, Passes, Root
from helium.emit.cpu.scope import AxisState, Buffer, Scope
from helium.emit.cpu.tiles import Tiles
from helium.rewrite import operands
from helium.sizes import Size
from helium.types import Block, Extent, Fixed, Value


class Body:
    """Emits one grid loop's body, once per call of :meth:`run`, into the current function."""

    def __init__(self, frame: Frame, loop: ir.Loop) -> None:
        self.frame, self.c = frame, frame.code
        points = analysis.point_axes(loop)
        self.definitions: analysis.Definitions = {
            i.result: i for i in analysis.walk(loop.body) if not isinstance(i, (ir.Loop, ir.Store))
        }  # fmt: skip
        self.stored = {i.tensor for i in analysis.walk(loop.body) if isinstance(i, ir.Store)}

        def wide(extent: Extent) -> bool:
            return extent != Fixed(1) and not (isinstance(extent, Block) and extent.axis in points)

        self.evaluator = Evaluator(frame, self.definitions)
        self.passes = Passes(self.evaluator, frame.plan.machine.vector_bytes // 4, wide)
        self.tiles = Tiles(frame, self.passes, not frame.plan.ahead)
        self.gemm = Gemm(self.passes, self.tiles)
        self.in_place: dict[Value, Buffer] = {}

    # A body, instruction by instruction.

    def run(self, scope: Scope, body: Sequence[ir.Instruction], ends: tuple[Value, ...] = ()) -> None:
        """Emit `body`; the values `ends` are needed afterwards."""
        queue = Queue(self, scope, analysis.last_uses(tuple(body), ends, self.definitions))
        for position, instruction in enumerate(body):
            queue.position = position
            self._step(scope, queue, instruction)
        queue.position = len(body)
        queue.flush()

    def _step(self, scope: Scope, queue: Queue, i: ir.Instruction) -> None:
        match i:
            case ir.Loop():
                queue.flush()
                self._keep_costly(scope, i)
                self._loop(scope, i)
            case ir.Dot():
                queue.flush()
                scope.buffers[i.result] = self._dot(scope, i)
            case ir.Store():
                self._store(scope, queue, i)
            case ir.Reduce() if not analysis.is_lazy(i):
                self._reduce(scope, queue, i)
            case _:
                self._lazy(scope, queue, i)

    def _store(self, scope: Scope, queue: Queue, i: ir.Store) -> None:
        if self.passes.domain(i.value):
            queue.add(i)
            return
        queue.flush()
        coords = (self.evaluator.zero,) * len(i.value.type.shape)
        value = self.evaluator.scalar(scope, i.value)
        place = self.evaluator.place(scope, i.tensor, i.indices, i.mask, coords, {})
        store(self.c, place, value, i.value.type.dtype, self.frame.dummy)

    def _reduce(self, scope: Scope, queue: Queue, i: ir.Reduce) -> None:
        if len(self.passes.domain(i.source)) == 1:
            queue.add(i)
            return
        queue.flush()
        scope.buffers[i.result] = self.tiles.make(i.result, i.line)
        self.passes.run(scope, [i])

    def _lazy(self, scope: Scope, queue: Queue, i: ir.Instruction) -> None:
        """Scalars are computed at once; tiles when needed, but those of tensors that the loop writes are read now."""
        assert not isinstance(i, (ir.Loop, ir.Store))
        if not self.passes.domain(i.result):
            queue.settle(i.result)
            scope.scalars[i.result] = self.evaluator.scalar(scope, i.result)
        elif isinstance(i, ir.Load) and i.tensor in self.stored:
            queue.flush()
            self.keep(scope, [i.result], i.line)

    def keep(self, scope: Scope, values: Sequence[Value], line: int) -> None:
        """Compute tiles into scratch, now."""
        for value in values:
            buffer = self.tiles.make(value, line)
            self.passes.run(scope, [Keep(value, buffer)])
            scope.buffers[value] = buffer

    def _keep_costly(self, scope: Scope, loop: ir.Loop) -> None:
        known = set(scope.scalars) | set(scope.buffers)
        inside = {i.result for i in analysis.walk(loop.body) if not isinstance(i, (ir.Loop, ir.Store))}
        wanted = {v: None for o in operands(loop) for v in analysis.reachable(o, self.definitions, known)}
        for value in wanted:
            costly = analysis.is_costly(self.definitions.get(value))
            if costly and value not in known and value not in inside and self.tiles.allowed(value):
                self.keep(scope, [value], loop.line)

    def _dot(self, scope: Scope, i: ir.Dot) -> Buffer:
        buffer = self.in_place.get(i.result)
        if buffer is None:
            buffer = self.tiles.make(i.result, i.line)
            if i.accumulator is None:
                self.gemm.clear(scope, i.result, buffer)
            else:
                self.passes.run(scope, [Keep(i.accumulator, buffer)])
        self.gemm.accumulate(scope, i, buffer)
        return buffer

    # Nested loops.

    def bound(self, scope: Scope, bound: Size | Value) -> V:
        """The value of an axis' begin or end."""
        return self.evaluator.scalar(scope, bound) if isinstance(bound, Value) else self.frame.size(bound)

    def _loop(self, scope: Scope, loop: ir.Loop) -> None:
        slots, buffers = self._enter(scope, loop)
        self._axes(scope.child(), loop, loop.axes, slots, buffers)
        for carried in loop.carried:
            if carried in slots:
                scope.scalars[carried.result] = self.c.b.load(slots[carried], typ=slots[carried].allocated_type)
            else:
                scope.buffers[carried.result] = buffers[carried]

    def _enter(self, scope: Scope, loop: ir.Loop) -> tuple[dict[ir.Carried, V], dict[ir.Carried, Buffer]]:
        """Put the initial values of carried variables where they live: a register, or scratch."""
        slots: dict[ir.Carried, V] = {}
        buffers: dict[ir.Carried, Buffer] = {}
        for carried in loop.carried:
            if self.passes.domain(carried.initial):
                buffer = buffers[carried] = self.tiles.make(carried.initial, loop.line)
                self.passes.run(scope, [Keep(carried.initial, buffer)])
                self._mark_in_place(loop, carried, buffer)
            else:
                value = self.evaluator.scalar(scope, carried.initial)
                slots[carried] = self.c.slot(value.type)
                self.c.b.store(value, slots[carried])
        return slots, buffers

    def _mark_in_place(self, loop: ir.Loop, carried: ir.Carried, buffer: Buffer) -> None:
        definition = self.definitions.get(carried.update)
        reads = sum(value == carried.entry for i in loop.body for value in operands(i))
        if isinstance(definition, ir.Dot) and definition.accumulator == carried.entry and reads == 1:
            self.in_place[definition.result] = buffer

    def _axes(
        self,
        scope: Scope,
        loop: ir.Loop,
        axes: tuple[ir.Axis, ...],
        slots: dict[ir.Carried, V],
        buffers: dict[ir.Carried, Buffer],
    ) -> None:
        if not axes:
            self._iteration(scope, loop, slots, buffers)
            return
        c, axis = self.c, axes[0]
        begin, end = self.bound(scope, axis.begin), self.bound(scope, axis.end)
        with c.loop(begin, end, self.frame.plan.blocks[axis.name]) as base:
            inner = scope.child()
            inner.axes[axis.name] = self.block(axis.name, begin, base, end)
            self._axes(inner, loop, axes[1:], slots, buffers)

    def block(self, name: str, begin: V, base: V, end: V) -> AxisState:
        """The block of an axis that starts at `base`."""
        c, size = self.c, self.frame.plan.blocks[name]
        last = c.minimum(c.b.add(base, c.i64(size)), end)
        number = c.b.sdiv(c.b.sub(base, begin), c.i64(size))
        return AxisState(base, c.b.sub(last, base), base, last, number, size)

    def _iteration(
        self, scope: Scope, loop: ir.Loop, slots: dict[ir.Carried, V], buffers: dict[ir.Carried, Buffer]
    ) -> None:
        for carried in loop.carried:
            if carried in slots:
                scope.scalars[carried.entry] = self.c.b.load(slots[carried], typ=slots[carried].allocated_type)
            else:
                scope.buffers[carried.entry] = buffers[carried]
        self.run(scope, loop.body, tuple(c.update for c in loop.carried))
        updates = {c: self.evaluator.scalar(scope, c.update) for c in slots}
        self._update(scope, loop, buffers)
        for carried, value in updates.items():
            self.c.b.store(value, slots[carried])

    def _update(self, scope: Scope, loop: ir.Loop, buffers: dict[ir.Carried, Buffer]) -> None:
        """Move updates of kept tiles in; through copies where one could overwrite what another still reads."""
        moved = {c: b for c, b in buffers.items() if scope.buffers.get(c.update) is not b}
        if len(moved) > 1:
            for carried in moved:
                if carried.update not in scope.buffers or carried.update in {c.entry for c in buffers}:
                    copy = self.tiles.make(carried.update, loop.line)
                    self.passes.run(scope, [Keep(carried.update, copy)])
                    scope.buffers[carried.update] = copy
        for carried, buffer in moved.items():
            self.passes.run(scope, [Keep(carried.update, buffer)])


class Queue:
    """Stores and reductions of one domain that wait to share a pass."""

    def __init__(self, body: Body, scope: Scope, last: dict[Value, int]) -> None:
        self.body, self.scope, self.last = body, scope, last
        self.position = 0
        self._roots: list[Root] = []

    def add(self, root: ir.Store | ir.Reduce) -> None:
        """Queue a root, after running what it cannot share a pass with."""
        subject = Passes.subject(root)
        for value in operands(root):
            self.settle(value)
        if self._roots and self._domain(Passes.subject(self._roots[0])) != self._domain(subject):
            self.flush()
        self._roots.append(root)

    def settle(self, value: Value) -> None:
        """Run the queue if `value` depends on a reduction in it."""
        waiting = {root.result for root in self._roots if isinstance(root, ir.Reduce)}
        if waiting and waiting & set(analysis.reachable(value, self.body.definitions, self._known())):
            self.flush()

    def flush(self) -> None:
        """Run what waits; costly tiles that are needed again later are kept on the way."""
        if not self._roots:
            return
        roots, self._roots = self._roots, []
        domain, known = self._domain(Passes.subject(roots[0])), self._known()
        kept: list[Keep] = []
        for value in {v: None for r in roots for o in _reads(r) for v in self._reach(o, known)}:
            again = self.last.get(value, -1) >= self.position
            if again and len(domain) == 1 and self._domain(value) == domain and self.body.tiles.allowed(value):
                kept.append(Keep(value, self.body.tiles.make(value, 0)))
        self.body.passes.run(self.scope, [*roots, *kept])
        for keep in kept:
            self.scope.buffers[keep.value] = keep.buffer

    def _reach(self, value: Value, known: set[Value]) -> list[Value]:
        definitions = self.body.definitions
        found = analysis.reachable(value, definitions, known)
        return [v for v in found if v not in known and analysis.is_costly(definitions.get(v))]

    def _known(self) -> set[Value]:
        return set(self.scope.scalars) | set(self.scope.buffers)

    def _domain(self, value: Value) -> tuple[Extent, ...]:
        return self.body.passes.domain(value)


def _reads(root: Root) -> list[Value]:
    return [root.value] if isinstance(root, Keep) else list(operands(root))
