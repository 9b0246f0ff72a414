"""A kernel as an operation of torch.library: one node for torch.export and torch.compile, with fake and gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from helium import dtypes, ir
from helium.errors import ArgumentMismatch
from helium.runtime.compile import shape_of
from helium.specialise import Bound

if TYPE_CHECKING:
    from helium.decorator import Kernel

_TYPES = {"float64": "float", "int64": "SymInt", "bool": "bool"}
Operation = Callable[..., Any]


def register(kernel: Kernel, bound: Bound) -> Operation:
    """Register `kernel` for arguments of these kinds (tensor, float, int, bool) and give its operation.

    Raises:
        ArgumentMismatch: It takes something else, or writes to its arguments, or returns other than its outputs.
    """
    lowered = kernel.lower_bound(bound)
    made = {output.name for output in lowered.outputs}
    if bound.constants:
        name = next(iter(bound.constants))
        raise ArgumentMismatch(kernel.name, f"argument {name} is no tensor or number", "it cannot be traced by torch")
    if set(lowered.returns) != made or len(lowered.returns) != len(made):
        raise ArgumentMismatch(kernel.name, "it returns other than its outputs", "it cannot be traced by torch")
    result = ", ".join(["Tensor"] * len(lowered.returns))
    result = f"({result})" if lowered.returns_tuple else result
    schema = f"({', '.join(map(_parameter, lowered.params))}) -> {result}"
    operation = torch.library.custom_op(kernel.name, kernel.run, mutates_args=(), schema=schema)
    operation.register_fake(_fake(kernel))
    if kernel.backward is not None:
        operation.register_autograd(_backward(kernel), setup_context=_save)
    namespace, name = kernel.name.split("::")
    found: Operation = getattr(getattr(torch.ops, namespace), name)
    return found


def _parameter(param: ir.TensorParam | ir.ScalarParam) -> str:
    return f"Tensor {param.name}" if isinstance(param, ir.TensorParam) else f"{_TYPES[param.dtype]} {param.name}"


def _fake(kernel: Kernel) -> Callable[..., Any]:
    def fake(*args: Any) -> Any:
        bound = kernel.bind(*args)
        lowered = kernel.lower_bound(bound)
        device = next(iter(bound.tensors.values())).device
        made = {
            o.name: torch.empty(shape_of(o, bound.tensors, bound.scalars), dtype=dtypes.TORCH[o.dtype], device=device)
            for o in lowered.outputs
        }
        results = tuple(made[name] for name in lowered.returns)
        return results if lowered.returns_tuple else results[0]

    return fake


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    outputs = output if isinstance(output, tuple) else (output,)
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    ctx.save_for_backward(*tensors, *outputs)
    ctx.numbers = [None if isinstance(value, torch.Tensor) else value for value in inputs]
    ctx.is_tensor = [isinstance(value, torch.Tensor) for value in inputs]


def _backward(kernel: Kernel) -> Callable[..., Any]:
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        args = tuple(next(saved) if t else n for t, n in zip(ctx.is_tensor, ctx.numbers, strict=True))
        return kernel.backward(grads, args, tuple(saved))

    return backward
