"""The textual form of the tile IR: one instruction a line, with its type and the user's line."""

from __future__ import annotations

from collections.abc import Iterator

from helium import ir
from helium.types import Value


def show(kernel: ir.Kernel) -> str:
    """The whole kernel as text."""
    return "\n".join(_kernel(kernel))


def _kernel(kernel: ir.Kernel) -> Iterator[str]:
    yield f"kernel {kernel.name}({', '.join(map(_param, kernel.params))})  # {kernel.file}:{kernel.first_line}"
    for output in kernel.outputs:
        fill = "uninitialised" if output.fill is None else f"filled with {output.fill}"
        shape = ", ".join(map(str, output.shape))
        yield f"  output {output.name}: {output.dtype}[{shape}] {fill}  # line {output.line}"
    for guard in kernel.guards:
        yield f"  require {guard.left} {guard.relation} {guard.right}  # line {guard.line}"
    for loop in kernel.loops:
        yield from _loop(loop, "grid", "  ")
    yield f"  return {', '.join(kernel.returns)}"


def _param(param: ir.TensorParam | ir.ScalarParam) -> str:
    if isinstance(param, ir.TensorParam):
        return f"{param.name}: {param.dtype}[{', '.join('?' * param.rank)}]"
    return f"{param.name}: {param.dtype}"


def _axis(axis: ir.Axis) -> str:
    return f"{axis.name} in {axis.begin}..{axis.end}" + (f" by {axis.block}" if axis.block is not None else "")


def _loop(loop: ir.Loop, word: str, indent: str) -> Iterator[str]:
    axes = ", ".join(map(_axis, loop.axes))
    yield f"{indent}{word} {axes}:  # line {loop.line}"
    for carried in loop.carried:
        yield f"{indent}  carry {carried.entry}: {carried.entry.type} = {carried.initial}, then {carried.update}"
    for instruction in loop.body:
        yield from _instruction(instruction, indent + "  ")
    for carried in loop.carried:
        yield f"{indent}{carried.result} = the last {carried.entry}"


def _instruction(instruction: ir.Instruction, indent: str) -> Iterator[str]:
    match instruction:
        case ir.Loop():
            yield from _loop(instruction, "loop", indent)
        case ir.Store():
            target = f"{instruction.tensor}[{_indices(instruction.indices)}]"
            yield f"{indent}{target} = {instruction.value}{_mask(instruction.mask)}  # line {instruction.line}"
        case _:
            result = instruction.result
            yield f"{indent}{result}: {result.type} = {_expression(instruction)}  # line {instruction.line}"


def _expression(instruction: ir.Instruction) -> str:
    match instruction:
        case ir.Constant(value=value):
            return repr(value)
        case ir.Argument(name=name):
            return f"argument {name}"
        case ir.SizeValue(size=size):
            return f"size {size}"
        case ir.AxisValue(axis=axis, fact=fact):
            return f"{axis}.{fact}"
        case ir.Load(tensor=tensor, indices=indices, mask=mask):
            return f"{tensor}[{_indices(indices)}]{_mask(mask)}"
        case ir.Unsqueeze(source=source, dim=dim):
            return f"unsqueeze({source}, {dim})"
        case ir.Transpose(source=source, order=order):
            return f"transpose({source}, {order})"
        case ir.Cast(source=source) | ir.Broadcast(source=source):
            return f"{type(instruction).__name__.lower()}({source})"
        case ir.Unary(op=op, source=source):
            return f"{op}({source})"
        case ir.Binary(op=op, left=left, right=right) | ir.Compare(op=op, left=left, right=right):
            return f"{op}({left}, {right})"
        case ir.Select(condition=condition, then=then, otherwise=otherwise):
            return f"select({condition}, {then}, {otherwise})"
        case ir.Reduce(op=op, source=source, dim=dim):
            return f"reduce_{op}({source}, dim={dim})"
        case ir.Dot(left=left, right=right, accumulator=accumulator):
            return f"dot({left}, {right})" + (f" + {accumulator}" if accumulator else "")
    raise AssertionError(f"no textual form of {type(instruction).__name__}")


def _indices(indices: tuple[ir.Index, ...]) -> str:
    return ", ".join(map(_index, indices))


def _index(index: ir.Index) -> str:
    match index:
        case ir.AxisIndex(axis=axis):
            return axis
        case ir.WholeIndex(size=size):
            return f":{size}"
        case ir.ValueIndex(value=value):
            return str(value)


def _mask(mask: Value | None) -> str:
    return f" where {mask}" if mask else ""
