"""One method from its graph to loops: bind its tensors, lower its nodes in order, deliver outputs and new state."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx

from executor import ir
from executor.compiler import index as ix
from executor.compiler import operations as operations
from executor.compiler.builder import Builder
from executor.compiler.capture import Captured
from executor.compiler.constants import Constants, Pool
from executor.compiler.dtypes import name_of
from executor.compiler.link import Kernels
from executor.compiler.lower import REGISTRY, Context, shape_of, whole_of
from executor.compiler.values import Lazy, Pending, Value

aten = torch.ops.aten

_SCATTERS = (aten.index_put.default, aten.slice_scatter.default, aten.select_scatter.default)
# Formulas of indexes: cheaper to make at each use than to keep.
_FREE = {
    aten.arange.start_step, aten.full.default, aten.scalar_tensor.default, aten.zeros.default, aten.ones.default,
    aten.view.default, aten.permute.default, aten.expand.default, aten.unsqueeze.default, aten.squeeze.dims,
    aten.slice.Tensor, aten.select.int, aten.split_with_sizes.default, aten.clone.default, operator.getitem,
}  # fmt: skip
_LARGEST_FOLDED = 1 << 20
"""A folded constant may have as many elements, or as many as what it is made from."""


@dataclass(slots=True)
class MethodLowering:
    """Lowers one captured method; what it makes is in `builder`."""

    captured: Captured
    constants: Constants
    states: Pool
    builder: Builder
    kernels: Kernels
    _weights: dict[int, int] = field(default_factory=dict)
    _folded: dict[fx.Node, Tensor | None] = field(default_factory=dict)

    def run(self) -> None:
        """Make the loops."""
        nodes = list(self.captured.graph.nodes)
        context = Context(self.builder, self._in_place(), transposed=self._transposed, kernels=self.kernels)
        for node in nodes:
            for used in node.all_input_nodes:
                context.last_use[used] = node
        self._folded = self._foldable(nodes)
        self._bind(context)
        for node in nodes:
            if node.op != "call_function" or not (node.users or node in self.captured.outputs):
                continue
            if node in self._folded and node.target not in _FREE:
                if any(user not in self._folded for user in node.users):
                    context.values[node] = self._weight(str(node.name), self._evaluate(node))
                continue
            if node in self._folded and all(user in self._folded for user in node.users):
                continue
            context.run(node)
        self._deliver(context)

    def _bind(self, context: Context) -> None:
        """Give every placeholder its buffer."""
        for place, (node, leaf) in enumerate(zip(self.captured.inputs, self.captured.leaves, strict=True)):
            number = self.builder.buffer(leaf.name, "input", leaf.dtype, shape_of(node), place)
            context.values[node] = whole_of(self.builder, number)
        for node, (name, tensor) in self.captured.tensors.items():
            if not node.users and node not in self.captured.outputs:
                continue
            state = self.states.number(tensor)
            if state is None:
                context.values[node] = self._weight(name, tensor)
                continue
            held = self.states.held[state]
            number = self.builder.buffer(held.name, "state", held.dtype, tuple(tensor.shape), state)
            context.values[node] = whole_of(self.builder, number)

    def _weight(self, name: str, tensor: Tensor) -> Lazy:
        return whole_of(self.builder, self._weight_buffer(self.constants.add(name, tensor)))

    def _weight_buffer(self, constant: int) -> int:
        """The buffer of a constant in this method."""
        if constant not in self._weights:
            held = self.constants.held[constant]
            made = self.builder.buffer(held.name, "weight", held.dtype, tuple(held.tensor.shape), constant)
            self._weights[constant] = made
        return self._weights[constant]

    def _transposed(self, buffer: int) -> int:
        return self._weight_buffer(self.constants.transposed(self.builder.slots[buffer].index))

    def _in_place(self) -> frozenset[fx.Node]:
        """The writes that lead from a buffer of the module to its own new value."""
        holders = {name: node for node, (name, _) in self.captured.tensors.items()}
        found: set[fx.Node] = set()
        for name, last in self.captured.mutated.items():
            chain, node = [], last
            while isinstance(node, fx.Node) and node.target in _SCATTERS:
                chain.append(node)
                node = node.args[0]  # type: ignore[assignment]
            if node is holders.get(name):
                found.update(chain)
        return frozenset(found)

    def _foldable(self, nodes: list[fx.Node]) -> dict[fx.Node, Tensor | None]:
        """The nodes that are the same at every call; placeholders come with their tensors."""
        known: dict[fx.Node, Any] = {
            node: tensor for node, (_, tensor) in self.captured.tensors.items() if self.states.number(tensor) is None
        }
        for node in nodes:
            if node.op != "call_function" or not all(used in known for used in node.all_input_nodes):
                continue
            made = node.meta.get("val")
            given = sum(
                used.meta["val"].numel() for used in node.all_input_nodes if isinstance(used.meta["val"], Tensor)
            )
            small = isinstance(made, Tensor) and made.numel() <= max(given, _LARGEST_FOLDED)
            if node.target in _FREE or (small and node.target in REGISTRY):
                known[node] = None
        return known

    def _evaluate(self, node: fx.Node) -> Any:
        """The value of a foldable node."""
        if self._folded[node] is None:
            fill = lambda used: self._evaluate(used)  # noqa: E731
            args, kwargs = fx.map_arg((node.args, node.kwargs), fill)
            with torch.no_grad():
                self._folded[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return self._folded[node]

    def _deliver(self, context: Context) -> None:
        """Outputs into their buffers; then new state that is not there yet."""
        for place, node in enumerate(self.captured.outputs):
            self._output(context, place, node)
        self._new_state(context)

    def _output(self, context: Context, place: int, node: fx.Node) -> None:
        value = self._final(context, node)
        name, shape = f"output{place}", shape_of(node)
        dtype = name_of(node.meta["val"].dtype, "an output")
        slot = self.builder.slots[value.buffer] if isinstance(value, Lazy) and value.buffer is not None else None
        if slot is not None and slot.kind == "temp" and value.size == shape_size(slot.shape):
            slot.name, slot.kind, slot.index, slot.shape = name, "output", place, shape
            return
        made = self.builder.buffer(name, "output", dtype, shape, place)
        self.builder.store(value, made)
        context.values[node] = whole_of(self.builder, made)

    def _final(self, context: Context, node: fx.Node) -> Value:
        if node in self._folded and node not in context.values:
            context.values[node] = self._weight(str(node.name), self._evaluate(node))
        return context.value(node)

    def _new_state(self, context: Context) -> None:
        """Whole new values of state: those that read state are made first, all of them, then written."""
        pending = [(state, node, value) for state, node, value in self._mutations(context)]
        buffers = {state for state, _, _ in pending}
        for place, (state, node, value) in enumerate(pending):
            if (value.reads - {state}) & buffers or not _pointwise(value, state):
                pending[place] = (state, node, self.builder.realise(_unaliased(value)))
        for state, _, value in pending:
            self.builder.store(value, state)

    def _mutations(self, context: Context) -> Iterator[tuple[int, fx.Node, Value]]:
        numbers = {slot.index: number for number, slot in enumerate(self.builder.slots) if slot.kind == "state"}
        tensors = dict(self.captured.tensors.values())
        for name, node in self.captured.mutated.items():
            state = self.states.number(tensors[name])
            assert state is not None
            if state not in numbers:
                held = self.states.held[state]
                numbers[state] = self.builder.buffer(held.name, "state", held.dtype, tuple(held.tensor.shape), state)
            value = self._final(context, node)
            if not (isinstance(value, Lazy) and value.buffer == numbers[state]):
                yield numbers[state], node, value


def shape_size(shape: tuple[int, ...]) -> int:
    """How many elements."""
    return torch.Size(shape).numel()


def _unaliased(value: Value) -> Value:
    """The same value, not taken for a buffer that is about to be overwritten."""
    return replace(value, buffer=None) if isinstance(value, Lazy) else value


def _pointwise(value: Value, state: int) -> bool:
    """Whether each element needs nothing of `state` but the element that it replaces."""
    if state not in value.reads:
        return True
    if isinstance(value, Pending):
        return False
    at = [ir.Axis(axis) for axis in range(len(value.shape))]
    simplify = ix.Simplifier(value.shape)
    place = simplify(ix.linear(at, ix.contiguous(value.shape)))
    loads = [node for node in ir.walk(simplify(value.at(at))) if isinstance(node, ir.Load) and node.buffer == state]
    return all(load.index == place for load in loads)
