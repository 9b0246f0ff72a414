"""Common subexpressions: a node of a functional graph that computes what an earlier one did gives way to it."""

from __future__ import annotations

from typing import Any

from torch import fx


def without_duplicates(graph: fx.Graph) -> None:
    """Merge equal nodes, in place. All operations are functional, so equal arguments are equal results."""
    first: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        other = first.setdefault((node.target, _key(node.args), _key(node.kwargs)), node)
        if other is not node:
            node.replace_all_uses_with(other)
            graph.erase_node(node)


def _key(argument: Any) -> Any:
    """Equal for equal arguments only: 1, 1.0 and True differ."""
    if isinstance(argument, list | tuple):
        return (type(argument).__name__, *map(_key, argument))
    if isinstance(argument, dict):
        return tuple((name, _key(value)) for name, value in sorted(argument.items()))
    return argument if isinstance(argument, fx.Node) else (type(argument).__name__, repr(argument))
