"""Meets the kernel-callable contract with the native emitter: from a kernel and specs to an :class:`Artifact`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from helium import aot, ir
from helium.contract import Artifact, Target, TensorSpec
from helium.errors import UnsupportedKernel
from helium.specialise import Bound


class Lowers(Protocol):
    """What is needed of a kernel."""

    @property
    def name(self) -> str: ...
    def bind(self, *args: Any) -> Bound: ...
    def lower_bound(self, bound: Bound) -> ir.Kernel: ...
    def abstract(self, *args: Any) -> tuple[TensorSpec, ...]: ...


def artifact(kernel: Lowers, args: Sequence[Any], target: str) -> Artifact:
    """Compile `kernel` for specs and numbers.

    Raises:
        UnsupportedTarget: LLVM here does not know the target.
        UnsupportedKernel: The kernel returns a tensor that it did not make, or makes one that it does not return.
        ValueError: `target` is not of the grammar.
    """
    canonical = str(Target.parse(target))
    bound = kernel.bind(*args)
    lowered = _outputs_as_returned(kernel.lower_bound(bound))
    inputs, outputs = tuple(bound.tensors.values()), kernel.abstract(*args)
    made = aot.emit_object(lowered, inputs, outputs, bound.scalars, canonical)
    return Artifact(canonical, "object", made.code, made.symbol, inputs, outputs, made.symbols, made.workspace)


def _outputs_as_returned(kernel: ir.Kernel) -> ir.Kernel:
    """`kernel` with its output buffers in the order of its results, which is the artifact's."""
    outputs = {output.name: output for output in kernel.outputs}
    if sorted(outputs) != sorted(kernel.returns):
        reason = f"it makes {', '.join(outputs) or 'nothing'} and returns {', '.join(kernel.returns) or 'nothing'}"
        fix = "an artifact's outputs are what the kernel makes: return each tensor that is made, once, and no argument"
        raise UnsupportedKernel(kernel.name, reason, kernel.first_line, fix)
    return replace(kernel, outputs=tuple(outputs[name] for name in kernel.returns))
