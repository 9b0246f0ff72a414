"""The whole LLVM module of a plan: the entry point, its guards, and one worker per grid loop."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir as llvm

from helium import ir
from helium.emit.cpu import analysis, elementwise, memory
from helium.emit.cpu.body import Body
from helium.emit.cpu.code import I8, I32, I64, POINTER, Code, V
from helium.emit.cpu.frame import Frame, Scratch
from helium.emit.cpu.plan import Plan, Pool
from helium.emit.cpu.scope import Scope

GRAINS = 8
"""Pieces of work per thread: enough to even out a thread that is held up."""
SERIAL_BYTES = 1 << 15
"""Grids of fewer points than this run on the calling thread: joining a pool costs about as much as the work."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """A module's text, and the scratch memory that each thread needs, per grid loop."""

    text: str
    scratch: tuple[tuple[Scratch, ...], ...]


def emit(plan: Plan) -> Emitted:
    """LLVM IR of a plan.

    The entry point is ``int symbol(buffers, sizes, scratch)``. Of code for this process it has a fourth argument, the
    number of threads, and `sizes` has one more entry: the bytes of scratch memory per thread.

    Raises:
        UnsupportedKernel: The kernel needs what this emitter cannot express.
    """
    module = llvm.Module(plan.symbol)
    module.triple = plan.machine.triple
    workers, scratch = [], []
    for number, loop in enumerate(plan.kernel.loops):
        worker, requests = _worker(module, plan, loop, f"{plan.symbol}_loop{number}")
        workers.append(worker)
        scratch.append(requests)
    _entry(module, plan, workers)
    # LLVM must not turn loops into calls of memset and memcpy: an object may have no undefined symbols.
    text = str(module).replace("\n{\n", ' "no-builtins"\n{\n')
    return Emitted(text, tuple(scratch))


# Workers: void worker(buffers, sizes, scratch, first task, last task)


def _worker(module: llvm.Module, plan: Plan, loop: ir.Loop, name: str) -> tuple[V, tuple[Scratch, ...]]:
    kind = llvm.FunctionType(llvm.VoidType(), [POINTER, POINTER, POINTER, I64, I64])
    function = llvm.Function(module, kind, name)
    function.linkage = "internal"
    code = Code(module, function)
    frame = Frame(code, plan)
    body = Body(frame, loop)
    with code.loop(function.args[3], function.args[4]) as task:
        _task(frame, body, loop, task)
    code.b.ret_void()
    frame.finish()
    return function, tuple(frame.requests)


def _task(frame: Frame, body: Body, loop: ir.Loop, task: V) -> None:
    c, scope = frame.code, Scope()
    for axis in reversed(loop.axes):
        begin, end = body.bound(scope, axis.begin), body.bound(scope, axis.end)
        size = frame.plan.blocks[axis.name]
        count = c.ceil_div(c.b.sub(end, begin), size)
        number = task if axis is loop.axes[0] else c.b.srem(task, count)
        task = c.b.sdiv(task, count)
        base = c.b.add(begin, c.b.mul(number, c.i64(size)))
        scope.axes[axis.name] = body.block(axis.name, begin, base, end)
    points = analysis.point_axes(loop)
    _points(frame, body, loop, scope, [a.name for a in loop.axes if a.name in points])


def _points(frame: Frame, body: Body, loop: ir.Loop, scope: Scope, points: list[str]) -> None:
    """Run the body for every index of the axes that go point by point."""
    if not points:
        body.run(scope, loop.body)
        return
    c, state = frame.code, scope.axes[points[0]]
    with c.loop(state.begin, state.end) as index:
        inner = scope.child()
        inner.axes[points[0]] = type(state)(index, c.i64(1), state.begin, state.end, state.number, state.block)
        _points(frame, body, loop, inner, points[1:])


# The entry point.


def _entry(module: llvm.Module, plan: Plan, workers: list[V]) -> None:
    arguments = [POINTER, POINTER, POINTER]
    if not plan.ahead:
        arguments.append(I64)
    function = llvm.Function(module, llvm.FunctionType(I32, arguments), plan.symbol)
    code = Code(module, function)
    frame = Frame(code, plan)
    for number, guard in enumerate(plan.kernel.guards):
        sign = "<=" if guard.relation == "<=" else "=="
        holds = code.b.icmp_signed(sign, frame.size(guard.left), frame.size(guard.right))
        with code.b.if_then(code.b.not_(holds)):
            code.b.ret(code.const(I32, number + 1))
    for output in plan.kernel.outputs:
        _fill(frame, output)
    for worker, loop in zip(workers, plan.kernel.loops, strict=True):
        _launch(module, frame, worker, loop)
    code.b.ret(code.const(I32, 0))
    frame.finish()


def _fill(frame: Frame, output: ir.Output) -> None:
    """Set an output that the kernel asked to be filled."""
    if output.fill is None:
        return
    c = frame.code
    total: V = c.i64(1)
    for extent in frame.plan.layouts[output.name].shape:
        total = c.b.mul(total, frame.extent(extent))
    value = elementwise.literal(c, output.fill, output.dtype)
    with c.loop(c.i64(0), total) as index:
        place = memory.Place(frame.tensors[output.name], index, 1, None)
        memory.store(c, place, value, output.dtype, frame.dummy)


def _launch(module: llvm.Module, frame: Frame, worker: V, loop: ir.Loop) -> None:
    c, function = frame.code, frame.code.function
    total, points = _tasks(frame, loop)
    pool = frame.plan.pool
    if frame.plan.ahead or pool is None:
        c.b.call(worker, [*function.args[:3], c.i64(0), total])
        return
    threads = function.args[3]
    serial = c.b.or_(
        c.b.icmp_signed("<", c.minimum(threads, total), c.i64(2)), c.b.icmp_signed("<", points, c.i64(SERIAL_BYTES))
    )
    with c.b.if_else(serial) as (alone, shared):
        with alone:
            c.b.call(worker, [*function.args[:3], c.i64(0), total])
        with shared:
            grain = c.ceil_div(total, c.b.mul(threads, c.i64(GRAINS)))
            team = _team(module, worker, pool)
            stride = c.load(c.offset(function.args[1], c.i64(len(frame.plan.symbols)), I64), I64, 8)
            fields = [*function.args[:3], stride, total, grain, c.i64(0)]
            record = c.slot(llvm.ArrayType(I64, len(fields)))
            for i, field in enumerate(fields):
                c.store(field, c.offset(record, c.i64(i), I64), 8)
            kind = llvm.FunctionType(llvm.VoidType(), [POINTER, POINTER, I32, I32])
            arguments = [team, record, c.b.trunc(threads, I32), c.const(I32, 0)]
            _call_address(c, pool.fork, kind, arguments)


def _tasks(frame: Frame, loop: ir.Loop) -> tuple[V, V]:
    """The number of tasks of a grid, and a rough measure of its work."""
    c = frame.code
    total: V = c.i64(1)
    for axis in loop.axes:
        assert not hasattr(axis.begin, "type")
        length = c.b.sub(frame.size(axis.end), frame.size(axis.begin))  # type: ignore[arg-type]
        length = c.b.select(c.b.icmp_signed("<", length, c.i64(0)), c.i64(0), length)
        total = c.b.mul(total, c.ceil_div(length, frame.plan.blocks[axis.name]))
    work: V = c.i64(0)
    for layout in frame.plan.layouts.values():
        size: V = c.i64(1)
        for extent in layout.shape:
            size = c.b.mul(size, frame.extent(extent))
        work = c.b.add(work, size)
    return total, work


def _team(module: llvm.Module, worker: V, pool: Pool) -> V:
    """``void team(record)``: each thread takes grains of tasks until none is left."""
    function = llvm.Function(module, llvm.FunctionType(llvm.VoidType(), [POINTER]), f"{worker.name}_team")
    function.linkage = "internal"
    c = Code(module, function)
    record = function.args[0]
    pointers = [c.load(c.offset(record, c.i64(i), I64), POINTER, 8) for i in range(3)]
    stride, total, grain = (c.load(c.offset(record, c.i64(i), I64), I64, 8) for i in range(3, 6))
    me = c.b.sext(_call_address(c, pool.number, llvm.FunctionType(I32, []), []), I64)
    scratch = c.offset(pointers[2], c.b.mul(me, stride), I8)
    head, body, after = c.block("head"), c.block("body"), c.block("after")
    c.b.branch(head)
    c.b.position_at_end(head)
    first = c.b.atomic_rmw("add", c.offset(record, c.i64(6), I64), grain, "monotonic")
    c.b.cbranch(c.b.icmp_signed("<", first, total), body, after)
    c.b.position_at_end(body)
    last = c.minimum(c.b.add(first, grain), total)
    c.b.call(worker, [pointers[0], pointers[1], scratch, first, last])
    c.b.branch(head)
    c.b.position_at_end(after)
    c.b.ret_void()
    return function


def _call_address(c: Code, address: int, kind: V, arguments: list[V]) -> V:
    """Call a function of this process."""
    return c.b.call(c.b.inttoptr(c.i64(address), llvm.PointerType(kind)), arguments)
