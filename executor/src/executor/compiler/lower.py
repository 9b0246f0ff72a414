"""Lowering: walk an exported graph and hand each node to its operation's lowering."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from executor.compiler.builder import CHEAP, Builder
from executor.compiler.dtypes import name_of
from executor.compiler.link import Kernels
from executor.compiler.values import Lazy, Origin, Pending, Value, constant, whole
from executor.errors import UnsupportedError

Result: TypeAlias = Value | tuple[Value, ...]
Lowering: TypeAlias = Callable[["Context", fx.Node], Result]

REGISTRY: dict[Any, Lowering] = {}
CUSTOM: list[Lowering] = []
"""The lowering of operations that are not torch's own."""


def lowers(*operations: Any) -> Callable[[Lowering], Lowering]:
    """Register a function as the lowering of some operations."""

    def register(function: Lowering) -> Lowering:
        for operation in operations:
            assert operation not in REGISTRY, operation
            REGISTRY[operation] = function
        return function

    return register


@dataclass(slots=True)
class Context:
    """What lowerings work with: the builder, and the values of the nodes before.

    `in_place` are the nodes that may overwrite the buffer of their first argument, which is state; `derived` makes a
    constant out of another (executor.compiler.constants).
    """

    builder: Builder
    in_place: frozenset[fx.Node] = frozenset()
    values: dict[fx.Node, Result] = field(default_factory=dict)
    last_use: dict[fx.Node, fx.Node] = field(default_factory=dict)
    transposed: Callable[[int], int] | None = None
    kernels: Kernels | None = None

    def value(self, argument: Any) -> Value:
        """The value of a tensor argument."""
        found = self.values[argument]
        assert not isinstance(found, tuple)
        return found

    def lazy(self, argument: Any) -> Lazy:
        """The value of a tensor argument, by formula."""
        return self.builder.lazy(self.value(argument))

    def realised(self, argument: Any) -> Lazy:
        """The value of a tensor argument, in memory as a whole buffer."""
        made = self.builder.realise(self.value(argument))
        self.values[argument] = made
        return made

    def operand(self, argument: Any, like: fx.Node) -> Value:
        """The value of a tensor or number argument, a number being a tensor without dimensions of `like`'s dtype."""
        if isinstance(argument, fx.Node):
            return self.value(argument)
        return constant(argument, (), dtype_of(like))

    def before_write(self, buffer: int, node: fx.Node) -> None:
        """Put every value that still needs what `buffer` holds into memory, before `node` overwrites it."""
        for other, value in list(self.values.items()):
            if isinstance(value, tuple) or buffer not in value.reads or self.last_use.get(other) is node:
                continue
            copied = self.builder.temporary(value.dtype, value.shape)
            self.builder.store(value, copied)
            self.values[other] = whole_of(self.builder, copied)

    def run(self, node: fx.Node) -> None:
        """Lower one node."""
        lowering = REGISTRY.get(node.target) or (CUSTOM[0] if is_custom(node) else None)
        if lowering is None:
            cure = "write it with operations that it has (executor.compiler.operations)"
            raise UnsupportedError(f"no loops for operation {operation_of(node)}", source_of(node), cure)
        result = lowering(self, node)
        if isinstance(result, tuple):
            self.values[node] = tuple(_named(value, node) for value in result)
        else:
            self.values[node] = self._settled(_named(result, node), node)
        for used in node.all_input_nodes:
            if self.last_use.get(used) is node:
                self.values.pop(used, None)

    def _settled(self, value: Value, node: fx.Node) -> Value:
        """A value with several readers goes into memory, unless making it again costs nothing."""
        dear = isinstance(value, Pending) or value.cost > CHEAP
        return self.builder.realise(value) if dear and len(node.users) > 1 else value


def _named(value: Value, node: fx.Node) -> Value:
    """The value, said to come from `node` if nobody has said so."""
    return value if value.origin.operation else replace(value, origin=origin_of(node))


def whole_of(builder: Builder, buffer: int) -> Lazy:
    """All of a buffer of the builder."""
    slot = builder.slots[buffer]
    return whole(buffer, slot.shape, slot.dtype)


def args_of(node: fx.Node) -> list[Any]:
    """A node's arguments by position, each of the type that its operation's schema says."""
    return list(node.args)


def kwargs_of(node: fx.Node) -> dict[str, Any]:
    """A node's arguments by name, likewise."""
    return dict(node.kwargs)


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of what a node makes; UnsupportedError if it is not of plain numbers."""
    shape = tuple(node.meta["val"].shape)
    if not all(isinstance(size, int) for size in shape):
        raise UnsupportedError(f"a tensor of shape {shape}", source_of(node), "export it with fixed sizes")
    return shape


def dtype_of(node: fx.Node) -> str:
    """The dtype of what a node makes; UnsupportedError if this version has none like it."""
    return name_of(node.meta["val"].dtype, source_of(node))


def origin_of(node: fx.Node) -> Origin:
    """Where a node comes from."""
    return Origin(operation_of(node), source_of(node))


def is_custom(node: fx.Node) -> bool:
    """Whether a node calls an operation that somebody registered beside torch's."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in ("aten", "prim", "prims")


def operation_of(node: fx.Node) -> str:
    """ "aten.mm", "helium.rms_norm" """
    target = node.target
    return str(target).removesuffix(".default") if isinstance(target, torch._ops.OpOverload) else str(target)


_TORCH = os.path.dirname(torch.__file__)


def source_of(node: fx.Node) -> str:
    """ "model.py:12": the innermost line of the model that a node comes from; "" if it is unknown."""
    lines = [line for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip().startswith('File "')]
    if not lines:
        return ""
    own = [line for line in lines if _TORCH not in line]
    path, number = (own or lines)[-1].split('"')[1], (own or lines)[-1].split("line ")[1].split(",")[0]
    return f"{path.rsplit('/', 1)[-1]}:{number}"
