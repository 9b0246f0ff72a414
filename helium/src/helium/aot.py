"""Ahead of time: a kernel as one relocatable object with a C symbol, for a program that holds no Python."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from helium import contract, ir, schedule, targets
from helium.config import Config
from helium.contract import TensorSpec
from helium.emit.cpu import module
from helium.emit.cpu.plan import Layout, Machine, Plan
from helium.errors import UnsupportedTarget
from helium.runtime import jit


class Spec(Protocol):
    """What is read of a tensor spec; any object with these attributes will do. Symbols are names, "n", or "4*n"."""

    @property
    def shape(self) -> tuple[int | str, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def strides(self) -> tuple[int | str, ...]: ...


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """A relocatable object: position independent, single-threaded, reentrant, no undefined symbols.

    ``int symbol(void *const *buffers, const int64_t *sizes, void *workspace)`` returns 0, or 1 + the index of the
    guard of the kernel that does not hold. `symbols` names the entries of `sizes`; `workspace` is in bytes, 64-aligned.
    """

    code: bytes
    symbol: str
    symbols: tuple[str, ...]
    workspace: int


def emit_object(
    kernel: ir.Kernel,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    scalars: Mapping[str, float | int | bool],
    target: str,
) -> ObjectCode:
    """Compile `kernel` for `target`.

    Args:
        kernel: The IR, specialised to the dtypes of `inputs`.
        inputs: One spec for each tensor parameter, in order. Names in shapes and strides become symbols.
        outputs: One spec for each output, in order; shapes over the same symbols.
        scalars: The value of each scalar parameter; baked into the code.
        target: ``<arch>-<os>[+<feature>…]``, such as "x86_64-linux+avx2"; never "host".

    Raises:
        UnsupportedTarget: No code can be made for the target; names those for which it can.
        UnsupportedKernel: The kernel needs scratch memory of a size that only symbols give.
    """
    machine = _machine(kernel, target)
    specs = {p.name: spec for p, spec in zip(_tensors(kernel), inputs, strict=True)}
    specs |= dict(zip((output.name for output in kernel.outputs), outputs, strict=True))
    layouts = {name: Layout(kernel.tensors[name].dtype, spec.shape, spec.strides) for name, spec in specs.items()}
    symbols = contract.symbols(TensorSpec(s.shape, s.dtype, s.strides) for s in specs.values())
    symbol = _symbol(kernel, specs, scalars, target)
    blocks = schedule.choose(kernel, Config(), _results(outputs))
    emitted = module.emit(Plan(kernel, layouts, symbols, dict(scalars), blocks, machine, symbol, True, None))
    workspace = max((sum(piece.bytes({}) for piece in pieces) for pieces in emitted.scratch), default=0)
    return ObjectCode(jit.assemble(emitted.text, machine), symbol, symbols, workspace)


def _tensors(kernel: ir.Kernel) -> list[ir.TensorParam]:
    return [param for param in kernel.params if isinstance(param, ir.TensorParam)]


def _machine(kernel: ir.Kernel, target: str) -> Machine:
    """The target's machine, if it can run the kernel without a run-time library."""
    machine = targets.machine(target)
    halves = any(tensor.dtype == "float16" for tensor in kernel.tensors.values())
    if halves and not machine.converts_halves:
        raise UnsupportedTarget(f"{target} (for float16)", ("x86_64-linux+avx2", "aarch64-linux"))
    return machine


def _symbol(kernel: ir.Kernel, specs: Mapping[str, Spec], scalars: Mapping[str, object], target: str) -> str:
    """A C name that differs wherever the code does, so that artifacts can be linked together."""
    parts = [[(s.shape, s.dtype, s.strides) for s in specs.values()], sorted(scalars.items()), target, str(kernel)]
    return f"helium_{kernel.name}_{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def _results(outputs: Sequence[Spec]) -> int:
    """Elements of the largest output; symbols count as large."""
    sizes = [math.prod(e if isinstance(e, int) else 1024 for e in spec.shape) for spec in outputs]
    return max(sizes, default=0)
