"""Rewrite rules on the IR that need no schedule: one name for equal sizes, sums into products, no dead values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from helium import ir
from helium.sizes import Const, Dim, IntArg, Operation, Size
from helium.types import Value

Node = TypeVar("Node")


def simplify(kernel: ir.Kernel) -> ir.Kernel:
    """`kernel` with one name for each size that guards prove equal, sums taken into products, and nothing dead."""
    names = _equal_sizes(kernel.guards)
    outputs = tuple(replace(o, shape=tuple(names.get(s, s) for s in o.shape)) for o in kernel.outputs)
    loops = transform(kernel.loops, lambda node: names.get(cast(Size, node), node))
    loops = tuple(_without_dead(_accumulating(loop)) for loop in loops)
    return replace(kernel, loops=loops, outputs=outputs)


def transform(node: Node, rule: Callable[[Any], Any]) -> Node:
    """`node` rebuilt from the leaves up, with `rule` applied to every dataclass in it."""
    if isinstance(node, tuple):
        items = tuple(transform(item, rule) for item in node)
        return node if all(a is b for a, b in zip(items, node, strict=True)) else cast(Node, items)
    if is_dataclass(node) and not isinstance(node, type):
        changed = {f.name: transform(getattr(node, f.name), rule) for f in fields(node)}
        same = all(changed[name] is getattr(node, name) for name in changed)
        return cast(Node, rule(node if same else type(node)(**changed)))
    return node


def operands(instruction: ir.Instruction) -> Iterator[Value]:
    """The values that an instruction reads; of a loop, also those that its body reads."""
    for field in fields(instruction):
        if field.name != "result":
            yield from _values(getattr(instruction, field.name))


def _values(node: object) -> Iterator[Value]:
    if isinstance(node, Value):
        yield node
    elif isinstance(node, tuple):
        for item in node:
            yield from _values(item)
    elif isinstance(node, ir.Carried):
        yield from (node.initial, node.update)
    elif is_dataclass(node) and not isinstance(node, type):
        for field in fields(node):
            if field.name != "result":
                yield from _values(getattr(node, field.name))


def _equal_sizes(guards: tuple[ir.Guard, ...]) -> dict[Size, Size]:
    """For each dimension that an equality makes redundant, the size that stands for it."""
    names: dict[Size, Size] = {}

    def find(size: Size) -> Size:
        while size in names:
            size = names[size]
        return size

    for guard in guards:
        if guard.relation == "==":
            left, right = find(guard.left), find(guard.right)
            if left != right and isinstance(right, (Dim, IntArg)) and not isinstance(left, Operation):
                names[right] = left
            elif left != right and isinstance(left, (Dim, IntArg)) and isinstance(right, Const):
                names[left] = right
    return {size: find(size) for size in names}


def _accumulating(loop: ir.Loop) -> ir.Loop:
    """``acc + left @ right`` as a product that starts from acc, where the bare product serves nothing else."""
    products = {i.result: i for i in loop.body if isinstance(i, ir.Dot) and i.accumulator is None}
    uses = list(operands(loop))
    products = {value: dot for value, dot in products.items() if uses.count(value) == 1}
    return replace(loop, body=tuple(_accumulated(i, products) for i in loop.body))


def _accumulated(i: ir.Instruction, products: dict[Value, ir.Dot]) -> ir.Instruction:
    if isinstance(i, ir.Loop):
        return _accumulating(i)
    if isinstance(i, ir.Binary) and i.op == "add":
        for value, other in ((i.right, i.left), (i.left, i.right)):
            if value in products:
                return replace(products[value], result=i.result, accumulator=other)
    return i


def _without_dead(loop: ir.Loop) -> ir.Loop:
    while True:
        used = set(operands(loop))
        body = tuple(kept for i in loop.body if (kept := _keep(i, used)) is not None)
        if body == loop.body:
            return loop
        loop = replace(loop, body=body)


def _keep(instruction: ir.Instruction, used: set[Value]) -> ir.Instruction | None:
    if isinstance(instruction, ir.Loop):
        body = tuple(kept for i in instruction.body if (kept := _keep(i, used)) is not None)
        has_effect = any(isinstance(i, (ir.Store, ir.Loop)) for i in body)
        alive = has_effect or any(c.result in used for c in instruction.carried)
        return replace(instruction, body=body) if alive else None
    if isinstance(instruction, ir.Store) or instruction.result in used:
        return instruction
    return None
