"""Compiles a kernel for tensors of one kind: which strides are known, which symbols are left, and the native code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from helium import contract, ir
from helium.contract import Extent
from helium.emit.cpu import module
from helium.emit.cpu.frame import float_bits
from helium.emit.cpu.module import Emitted
from helium.emit.cpu.plan import Layout, Plan
from helium.runtime import jit, threads
from helium.sizes import Dim, IntArg, evaluate
from helium.targets import host_machine

Tensor = torch.Tensor
Strides: TypeAlias = Literal["dense", "rows", "any"]
"""Row-major without gaps; last dimension consecutive; anything."""


def stride_kind(tensor: Tensor) -> Strides:
    """The most that can be assumed of a tensor's strides."""
    if tensor.is_contiguous():
        return "dense"
    return "rows" if tensor.stride(-1) == 1 else "any"


def layouts(kernel: ir.Kernel, kinds: Mapping[str, Strides]) -> dict[str, Layout]:
    """A layout for every tensor, over symbols named after it; outputs are dense."""
    return {name: _layout(name, t, kinds.get(name, "dense")) for name, t in kernel.tensors.items()}


def _layout(name: str, tensor: ir.TensorParam | ir.Output, kind: Strides) -> Layout:
    rank = tensor.rank if isinstance(tensor, ir.TensorParam) else len(tensor.shape)
    shape: tuple[Extent, ...] = tuple(f"{name}_size{i}" for i in range(rank))
    strides: tuple[Extent, ...] = tuple(f"{name}_stride{i}" for i in range(rank))
    if kind == "dense":
        strides = contract.TensorSpec.contiguous(shape, "bool").strides
    elif kind == "rows":
        strides = (*strides[:-1], 1)
    return Layout(tensor.dtype, shape, strides)


@dataclass(frozen=True, slots=True)
class Compiled:
    """Native code of a kernel, for every size of tensors of one kind."""

    kernel: ir.Kernel
    plan: Plan
    emitted: Emitted
    native: jit.Native

    def sizes(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, float | int | bool]) -> list[int]:
        """The entries of `sizes` for these arguments, without the last."""
        known: dict[str, int] = {}
        for name, layout in self.plan.layouts.items():
            shape, strides = tensors[name].shape, tensors[name].stride()
            for symbol, value in zip((*layout.shape, *layout.strides), (*shape, *strides), strict=True):
                if isinstance(symbol, str) and "*" not in symbol:
                    known.setdefault(symbol, value)
        for name, value in scalars.items():
            known[name] = float_bits(value) if isinstance(value, float) else int(value)
        return [known[symbol] for symbol in self.plan.symbols]

    def scratch(self, sizes: list[int]) -> int:
        """Bytes of scratch memory that one thread needs."""
        known = dict(zip(self.plan.symbols, sizes, strict=True))
        return max((sum(piece.bytes(known) for piece in pieces) for pieces in self.emitted.scratch), default=0)


def compile_kernel(kernel: ir.Kernel, kinds: Mapping[str, Strides], blocks: Mapping[str, int]) -> Compiled:
    """Compile for this machine."""
    found = layouts(kernel, kinds)
    extents = (e for layout in found.values() for e in (*layout.shape, *layout.strides) if isinstance(e, str))
    symbols = dict.fromkeys(e for e in extents if "*" not in e)
    scalars = [p.name for p in kernel.params if isinstance(p, ir.ScalarParam)]
    machine = host_machine()
    plan = Plan(kernel, found, (*symbols, *scalars), {}, dict(blocks), machine, kernel.name, False, threads.pool())
    emitted = module.emit(plan)
    return Compiled(kernel, plan, emitted, jit.load(emitted.text, plan.symbol, machine))


def shape_of(output: ir.Output, tensors: Mapping[str, Any], scalars: Mapping[str, Any]) -> list[Any]:
    """The shape of an output for these arguments; symbolic integers go through."""

    def lookup(leaf: Dim | IntArg) -> Any:
        return scalars[leaf.name] if isinstance(leaf, IntArg) else tensors[leaf.tensor].shape[leaf.axis]

    return [evaluate(size, lookup) for size in output.shape]
