"""The reference executor: runs the IR tile by tile in plain torch, and thereby defines what it means.

It honours block sizes and masks, pads whole dimensions to a power of two, and poisons every dead lane (NaN in floats,
huge values in integers) after every instruction, so that a kernel or a rewrite that lets one through shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from helium import dtypes, ir
from helium.sizes import Dim, IntArg, Size, evaluate
from helium.types import Block, DType, Extent, TileType, Value, Whole

Tensor = torch.Tensor

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        n: getattr(torch, n)
        for n in ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "floor")
    },
    "ceil": torch.ceil,
    "round": torch.round,
    "not": torch.bitwise_not,
}
_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{n: getattr(torch, n) for n in ("add", "sub", "mul", "pow", "eq", "ne", "lt", "le", "gt", "ge")},
    "div": torch.true_divide,
    "floordiv": torch.floor_divide,
    "mod": torch.remainder,
    "max": torch.maximum,
    "min": torch.minimum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}


@dataclass(slots=True)
class _Span:
    """The current block of an axis."""

    begin: int
    first: int
    last: int
    block: int


@dataclass(slots=True)
class Machine:
    """The state of one run: tensors and scalars by name, block sizes, the current blocks, and the values so far."""

    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, float | int | bool]
    blocks: Mapping[str, int]
    spans: dict[str, _Span] = field(default_factory=dict)
    values: dict[Value, Tensor] = field(default_factory=dict)

    def size(self, size: Size) -> int:
        """The number that a size is in this run."""
        return evaluate(size, self._lookup)

    def _lookup(self, leaf: Dim | IntArg) -> int:
        if isinstance(leaf, IntArg):
            return int(self.scalars[leaf.name])
        return self.tensors[leaf.tensor].shape[leaf.axis]

    # Lanes.

    def lanes(self, extent: Extent) -> int:
        """How many lanes an extent has here, dead ones included."""
        if isinstance(extent, Block):
            return self.spans[extent.axis].block
        if isinstance(extent, Whole):
            return 1 << max(0, self.size(extent.size) - 1).bit_length()
        return extent.size

    def live(self, shape: tuple[Extent, ...]) -> Tensor:
        """Which lanes of a tile are live."""
        mask = torch.ones([self.lanes(extent) for extent in shape], dtype=torch.bool)
        for dim, extent in enumerate(shape):
            lane = torch.arange(self.lanes(extent))
            if isinstance(extent, Block):
                span = self.spans[extent.axis]
                mask &= _along(lane + span.begin < span.last, dim, len(shape))
            elif isinstance(extent, Whole):
                mask &= _along(lane < self.size(extent.size), dim, len(shape))
        return mask

    def define(self, result: Value, tile: Tensor) -> None:
        """Keep a result, its dead lanes poisoned."""
        shape = [self.lanes(extent) for extent in result.type.shape]
        tile = tile.to(dtypes.TORCH[result.type.dtype]).expand(shape)
        self.values[result] = torch.where(self.live(result.type.shape), tile, poison(result.type.dtype))

    # Execution.

    def loop(self, loop: ir.Loop) -> None:
        """Every block of a loop, in order."""
        state = [self.values[c.initial] for c in loop.carried]
        for begins in itertools.product(*(self._begins(axis) for axis in loop.axes)):
            for axis, begin in zip(loop.axes, begins, strict=True):
                first, last = self._bound(axis.begin), self._bound(axis.end)
                self.spans[axis.name] = _Span(begin, first, last, self.blocks[axis.name])
            for carried, value in zip(loop.carried, state, strict=True):
                self.values[carried.entry] = value
            for instruction in loop.body:
                self.execute(instruction)
            state = [self.values[c.update] for c in loop.carried]
        for carried, value in zip(loop.carried, state, strict=True):
            self.values[carried.result] = value

    def _begins(self, axis: ir.Axis) -> range:
        return range(self._bound(axis.begin), self._bound(axis.end), self.blocks[axis.name])

    def _bound(self, bound: Size | Value) -> int:
        return int(self.values[bound]) if isinstance(bound, Value) else self.size(bound)

    def execute(self, instruction: ir.Instruction) -> None:
        """One instruction, on the current blocks."""
        match instruction:
            case ir.Loop():
                self.loop(instruction)
            case ir.Store():
                self._store(instruction)
            case _:
                self.define(instruction.result, self._compute(instruction))

    def _compute(self, i: ir.Instruction) -> Tensor:
        get = self.values
        match i:
            case ir.Constant(value=value):
                return torch.tensor(value, dtype=dtypes.TORCH[i.result.type.dtype])
            case ir.Argument(name=name):
                return torch.tensor(self.scalars[name], dtype=dtypes.TORCH[i.result.type.dtype])
            case ir.SizeValue(size=size):
                return torch.tensor(self.size(size))
            case ir.AxisValue(axis=axis, fact=fact):
                return self._fact(axis, fact)
            case ir.Load():
                return self._load(i)
            case ir.Cast(source=source) | ir.Broadcast(source=source):
                return self._stretch(get[source], i.result.type)
            case ir.Unsqueeze(source=source, dim=dim):
                return get[source].unsqueeze(dim)
            case ir.Transpose(source=source, order=order):
                return get[source].permute(order)
            case ir.Unary(op=op, source=source):
                return _UNARY[op](get[source])
            case ir.Binary(op=op, left=left, right=right) | ir.Compare(op=op, left=left, right=right):
                return _BINARY[op](get[left], get[right])
            case ir.Select(condition=condition, then=then, otherwise=otherwise):
                return torch.where(get[condition], get[then], get[otherwise])
            case ir.Reduce(op=op, source=source, dim=dim):
                return self._reduce(op, source, dim)
            case ir.Dot(left=left, right=right, accumulator=accumulator):
                product = self._without_dead(left, 1) @ self._without_dead(right, 0)
                return product if accumulator is None else product + get[accumulator]
        raise AssertionError(f"{type(i).__name__} is no computation")

    def _stretch(self, tile: Tensor, kind: TileType) -> Tensor:
        shape = [self.lanes(extent) for extent in kind.shape]
        return tile.to(dtypes.TORCH[kind.dtype]).expand(shape)

    def _fact(self, axis: str, fact: str) -> Tensor:
        span = self.spans[axis]
        facts: dict[str, Any] = {
            "index": torch.arange(span.block) + span.begin,
            "begin": span.begin,
            "end": min(span.begin + span.block, span.last),
            "block_size": span.block,
            "id": (span.begin - span.first) // span.block,
        }
        return torch.as_tensor(facts[fact])

    def _reduce(self, op: str, source: Value, dim: int) -> Tensor:
        live = self.live(source.type.shape)
        dtype = source.type.dtype
        tile = torch.where(live, self.values[source], identity(op, dtype))
        if op == "sum":
            return tile.sum(dim, dtype=tile.dtype)
        if op == "prod":
            return tile.prod(dim, dtype=tile.dtype)
        return tile.amax(dim) if op == "max" else tile.amin(dim)

    def _without_dead(self, value: Value, dim: int) -> Tensor:
        wide = torch.float64 if value.type.dtype == "float64" else torch.float32
        lane = self.live((value.type.shape[dim],))
        return torch.where(_along(lane, dim, 2), self.values[value].to(wide), torch.zeros((), dtype=wide))

    # Memory.

    def _places(self, tensor: str, indices: tuple[ir.Index, ...], shape: tuple[Extent, ...], mask: Value | None) -> Any:
        valid = self.live(shape)
        if mask is not None:
            valid = valid & self.values[mask]
        places = []
        for dimension, index in enumerate(indices):
            place = self._place(index, len(shape)).expand(valid.shape)
            valid = valid & (place >= 0) & (place < self.tensors[tensor].shape[dimension])
            places.append(place)
        return tuple(torch.where(valid, place, 0) for place in places), valid

    def _place(self, index: ir.Index, rank: int) -> Tensor:
        match index:
            case ir.AxisIndex(axis=axis, dim=dim):
                span = self.spans[axis]
                return _along(torch.arange(span.block) + span.begin, dim, rank)
            case ir.WholeIndex(size=size, dim=dim):
                return _along(torch.arange(self.lanes(Whole(size))), dim, rank)
            case ir.ValueIndex(value=value):
                return self.values[value].to(torch.int64)

    def _load(self, i: ir.Load) -> Tensor:
        tensor = self.tensors[i.tensor]
        places, valid = self._places(i.tensor, i.indices, i.result.type.shape, i.mask)
        if not tensor.numel():
            return torch.zeros(valid.shape, dtype=tensor.dtype)
        return torch.where(valid, tensor[places], torch.zeros((), dtype=tensor.dtype))

    def _store(self, i: ir.Store) -> None:
        places, valid = self._places(i.tensor, i.indices, i.value.type.shape, i.mask)
        chosen = tuple(place[valid] for place in places)
        self.tensors[i.tensor][chosen] = self.values[i.value][valid]


def _along(vector: Tensor, dim: int, rank: int) -> Tensor:
    """`vector` as dimension `dim` of `rank`."""
    return vector.reshape([-1 if d == dim else 1 for d in range(rank)])


def poison(dtype: DType) -> Tensor:
    """What dead lanes of `dtype` hold."""
    kind = dtypes.TORCH[dtype]
    if dtypes.is_float(dtype):
        return torch.tensor(float("nan"), dtype=kind)
    return torch.tensor(True if dtype == "bool" else torch.iinfo(kind).max // 2, dtype=kind)


def identity(op: str, dtype: DType) -> Tensor:
    """The result of folding nothing."""
    kind = dtypes.TORCH[dtype]
    if op in ("sum", "prod"):
        return torch.tensor(int(op == "prod"), dtype=kind)
    if dtypes.is_float(dtype):
        return torch.tensor(float("-inf") if op == "max" else float("inf"), dtype=kind)
    if dtype == "bool":
        return torch.tensor(op == "min")
    info = torch.iinfo(kind)
    return torch.tensor(info.min if op == "max" else info.max, dtype=kind)


def run(
    kernel: ir.Kernel,
    inputs: Mapping[str, Tensor],
    scalars: Mapping[str, float | int | bool],
    blocks: Mapping[str, int],
) -> tuple[Tensor, ...]:
    """Run `kernel` on CPU tensors with these block sizes; gives what the kernel returns."""
    tensors = dict(inputs)
    machine = Machine(tensors, scalars, blocks)
    for output in kernel.outputs:
        shape, dtype = [machine.size(s) for s in output.shape], dtypes.TORCH[output.dtype]
        filled = poison(output.dtype).item() if output.fill is None else output.fill
        tensors[output.name] = torch.full(shape, filled, dtype=dtype)
    for loop in kernel.loops:
        machine.loop(loop)
    return tuple(tensors[name] for name in kernel.returns)
