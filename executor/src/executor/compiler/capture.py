"""Capture: from a module and example arguments to a functional graph of core ATen, and what goes in and out."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, OutputKind

from executor import trees
from executor.compiler.dtypes import name_of
from executor.compiler.exporting import export
from executor.compiler.lower import source_of
from executor.errors import CompileError, UnsupportedError
from executor.manifest import Leaf


@dataclass(frozen=True, slots=True)
class Captured:
    """One method as a graph. Tensors of the module are found by placeholder; `mutated` by the node of the new value."""

    name: str
    model: nn.Module
    graph: fx.Graph
    inputs: tuple[fx.Node, ...]
    leaves: tuple[Leaf, ...]
    input_tree: trees.Tree
    outputs: tuple[fx.Node, ...]
    output_leaves: tuple[Leaf, ...]
    output_tree: trees.Tree
    tensors: dict[fx.Node, tuple[str, Tensor]]
    mutated: dict[str, fx.Node]
    arguments: tuple[Tensor, ...]


def capture(name: str, model: nn.Module, args: tuple[Any, ...]) -> Captured:
    """Export `model` called with `args`. CompileError if torch.export cannot; UnsupportedError for what this cannot."""
    named = _named(name, model, args)
    exported = export(name, model, args)
    signature = exported.graph_signature
    placeholders = {node.name: node for node in exported.graph.find_nodes(op="placeholder")}
    arguments, tree = trees.flatten(named, lambda value: isinstance(value, Tensor))
    given = [spec.arg for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    inputs = tuple(
        placeholders[arg.name] for arg in given if isinstance(arg, torch.export.graph_signature.TensorArgument)
    )
    if len(inputs) != len(arguments):
        raise UnsupportedError(f"{len(arguments)} tensor arguments of which export keeps {len(inputs)}", "", _PLAIN)
    outputs, output_tree = _outputs(exported)
    return Captured(
        name=name,
        model=model,
        graph=exported.graph,
        inputs=inputs,
        leaves=tuple(_leaf(node, node.name) for node in inputs),
        input_tree=tree,
        outputs=outputs,
        output_leaves=tuple(_leaf(node, node.name) for node in outputs),
        output_tree=output_tree,
        tensors=_tensors(exported, placeholders),
        mutated=_mutated(exported),
        arguments=tuple(arguments),
    )


def _named(name: str, model: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """The arguments by parameter; those of `*rest` are rest_0, rest_1 and so on."""
    signature = inspect.signature(model.forward)
    try:
        bound = signature.bind(*args).arguments
    except TypeError as error:
        raise CompileError(f"example arguments of {name}{signature}: {error}") from None
    named: dict[str, Any] = {}
    for parameter, value in bound.items():
        if signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL:
            named.update({f"{parameter}_{place}": part for place, part in enumerate(value)})
        else:
            named[parameter] = value
    return named


_PLAIN = "pass tensors and constants in dicts, lists and tuples"


def _leaf(node: fx.Node, name: str) -> Leaf:
    value = node.meta["val"]
    return Leaf(name, name_of(value.dtype, source_of(node)), tuple(int(size) for size in value.shape))


def _outputs(exported: torch.export.ExportedProgram) -> tuple[tuple[fx.Node, ...], trees.Tree]:
    (output,) = exported.graph.find_nodes(op="output")
    specs = exported.graph_signature.output_specs
    for spec in specs:
        if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION):
            cure = "return the new value instead, or keep it in a buffer"
            raise UnsupportedError(f"a result of kind {spec.kind.name} ({spec.target or spec.arg})", "", cure)
    made = [value for value, spec in zip(output.args[0], specs, strict=True) if spec.kind is OutputKind.USER_OUTPUT]
    structure = exported.call_spec.out_spec.unflatten(made)
    leaves, tree = trees.flatten(structure, lambda value: isinstance(value, fx.Node))
    return tuple(leaves), tree


def _tensors(
    exported: torch.export.ExportedProgram, placeholders: dict[str, fx.Node]
) -> dict[fx.Node, tuple[str, Tensor]]:
    found = {}
    for spec in exported.graph_signature.input_specs:
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            target = str(spec.target)
            held = exported.state_dict if target in exported.state_dict else exported.constants
            found[placeholders[spec.arg.name]] = (target, held[target])
        elif spec.kind is not InputKind.USER_INPUT:
            raise UnsupportedError(f"an input of kind {spec.kind.name} ({spec.target})", "", _PLAIN)
    return found


def _mutated(exported: torch.export.ExportedProgram) -> dict[str, fx.Node]:
    (output,) = exported.graph.find_nodes(op="output")
    pairs = zip(output.args[0], exported.graph_signature.output_specs, strict=True)
    return {str(spec.target): value for value, spec in pairs if spec.kind is OutputKind.BUFFER_MUTATION}
