"""Lowering of custom operations: a provider's artifact, or the loops of what the kernel means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from executor import ir, kernels
from executor.compiler import index as ix
from executor.compiler.builder import Builder, ExternalCall
from executor.compiler.dtypes import name_of
from executor.compiler.exporting import export
from executor.compiler.link import Arguments, symbol_of
from executor.compiler.lower import CUSTOM, Context, Result, args_of, operation_of, origin_of, source_of, whole_of
from executor.compiler.values import Lazy, Origin, cast
from executor.errors import CompileError, KernelError, UnsupportedError


def lower_custom(context: Context, node: fx.Node) -> Result:
    """A call of an operation that is not torch's own."""
    assert context.kernels is not None
    name = kernel_name(node.target)
    kernel = context.kernels.find(name)
    if kernel is None:
        there = ", ".join(sorted(kernels.providers())) or "none"
        cure = f"install a provider of its namespace in {kernels.GROUP} (there is: {there}), or write it in plain torch"
        raise UnsupportedError(
            f"custom operation {operation_of(node)} without a kernel or decomposition", source_of(node), cure
        )
    made = node.meta["val"]
    outputs = tuple(_spec(tensor, node) for tensor in (made if isinstance(made, tuple | list) else (made,)))
    arguments = _arguments(node)
    operands = [context.realised(argument) for argument in args_of(node) if isinstance(argument, fx.Node)]
    artifact = context.kernels.artifact(kernel, arguments, outputs)
    results = [context.builder.temporary(spec.dtype, spec.shape) for spec in outputs]
    if artifact is None:
        _reference(context.builder, context, node, kernel, operands, results)
    else:
        reference = _reference_builder(context, node, kernel, operands, outputs)
        call = ExternalCall(
            symbol_of(artifact), artifact.digest, _sizes(kernel.name, artifact), artifact.workspace, reference
        )
        context.builder.call(call, [_buffer(operand) for operand in operands] + results, origin_of(node))
    values = tuple(whole_of(context.builder, result) for result in results)
    return values if isinstance(made, tuple | list) else values[0]


def kernel_name(target: Any) -> str:
    """ "namespace::kernel" of an operation"""
    return str(target.name()).split(".")[0] if hasattr(target, "name") else str(target)


def _spec(tensor: Tensor, node: fx.Node) -> kernels.TensorSpec:
    shape = tuple(int(size) for size in tensor.shape)
    return kernels.TensorSpec(shape, name_of(tensor.dtype, source_of(node)), ix.contiguous(shape))


def _arguments(node: fx.Node) -> Arguments:
    """What the kernel is called with: specs in the place of tensors."""
    return tuple(_spec(a.meta["val"], node) if isinstance(a, fx.Node) else a for a in args_of(node))


def _buffer(value: Lazy) -> int:
    assert value.buffer is not None
    return value.buffer


def _sizes(name: str, artifact: Any) -> tuple[int, ...]:
    """The value of each symbol; specs of plain numbers leave none."""
    if artifact.symbols:
        raise KernelError(name, f"its artifact has the symbols {artifact.symbols}, though every size was given")
    return ()


def _reference_builder(
    context: Context, node: fx.Node, kernel: Any, operands: Sequence[Lazy], outputs: Sequence[kernels.TensorSpec]
) -> Builder:
    """The kernel's meaning as loops of their own, over its parameters."""
    builder = Builder(codes=context.builder.codes)
    inputs = [
        whole_of(builder, builder.buffer(f"p{place}", "parameter", operand.dtype, operand.shape, place))
        for place, operand in enumerate(operands)
    ]
    results = [
        builder.buffer(f"p{place}", "parameter", spec.dtype, spec.shape, place)
        for place, spec in enumerate(outputs, len(inputs))
    ]
    try:
        _reference(builder, context, node, kernel, inputs, results)
    except CompileError as error:
        assert context.kernels is not None
        context.kernels.note(f"{kernel.name}: runs compiled only, as its reference makes no loops ({error})"[:300])
        _refuse(builder, kernel.name, results[0])
    return builder


def _refuse(builder: Builder, name: str, result: int) -> None:
    """Loops that stop with an error, so that an interpreter never goes on with wrong numbers."""
    builder.steps.clear()
    code = builder.code(f"{name} runs compiled only: load the program with allow_code=True")
    slot = builder.slots[result]
    nowhere = ir.Check(ix.const(0), 0, False, code)
    builder.nest((), [ir.Store(result, (), nowhere, cast(ix.const(0), "int64", slot.dtype))], Origin(name))


class _Reference(nn.Module):
    """A kernel's reference as a module of its tensors alone."""

    def __init__(self, kernel: Any, arguments: Sequence[Any]) -> None:
        super().__init__()
        self._kernel, self._arguments = kernel, arguments

    def forward(self, *tensors: Tensor) -> Any:
        given = iter(tensors)
        return self._kernel.reference(*(next(given) if isinstance(a, fx.Node) else a for a in self._arguments))


def _reference(
    builder: Builder, context: Context, node: fx.Node, kernel: Any, operands: Sequence[Lazy], results: Sequence[int]
) -> None:
    """Lower what the kernel means on these values, and put it into these buffers."""
    assert context.kernels is not None
    exported = context.kernels.reference(kernel.name, _arguments(node), lambda: _exported(kernel, node))
    graph = exported.graph
    if exported.state_dict or exported.constants:
        raise KernelError(kernel.name, "its reference holds tensors of its own; they must be arguments")
    inner = Context(builder, kernels=context.kernels)
    (output,) = graph.find_nodes(op="output")
    inner.values.update(zip(graph.find_nodes(op="placeholder"), operands, strict=True))
    for step in graph.nodes:
        if step.op == "call_function" and step.users:
            inner.run(step)
    for made, result in zip(output.args[0], results, strict=True):
        builder.store(inner.value(made), result)


def _exported(kernel: Any, node: fx.Node) -> torch.export.ExportedProgram:
    fakes = [argument.meta["val"] for argument in args_of(node) if isinstance(argument, fx.Node)]
    examples = [torch.zeros(tuple(fake.shape), dtype=fake.dtype) for fake in fakes]
    return export(kernel.name, _Reference(kernel, args_of(node)), tuple(examples))


CUSTOM.append(lower_custom)
