"""The parameters of one emitted Triton function, and what the launching Python passes for each of them."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from helium import ir
from helium.emit.triton_terms import DTYPES
from helium.sizes import Const, Dim, IntArg, Size
from helium.types import Block, Extent, Fixed, Whole

Kind: TypeAlias = Literal["pointer", "size", "stride", "scalar", "block"]
_ORDER: Final = {kind: i for i, kind in enumerate(("pointer", "size", "stride", "scalar", "block"))}


class Names:
    """Identifiers that do not clash with each other, with Python's, or with those of the emitted module."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {*dir(builtins), *keyword.kwlist, "tl", "torch", "triton", *taken}

    def unique(self, hint: str) -> str:
        """`hint`, or `hint` and a number."""
        name, number = hint, 0
        while name in self._taken:
            number += 1
            name = f"{hint}_{number}"
        self._taken.add(name)
        return name


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: its name, its annotation, and the expression that the launcher passes."""

    kind: Kind
    name: str
    annotation: str
    argument: str


class Parameters:
    """Collects parameters as the body asks for them, each once."""

    def __init__(self, kernel: ir.Kernel, names: Names, contractions: frozenset[Extent]) -> None:
        self._names, self._contractions = names, contractions
        self._scalars = {p.name: p for p in kernel.params if isinstance(p, ir.ScalarParam)}
        self._found: dict[object, Parameter] = {}

    def pointer(self, tensor: str) -> str:
        """The address of a tensor's first element."""
        return self._get(("pointer", tensor), "pointer", f"{tensor}_ptr", "", tensor)

    def stride(self, tensor: str, dim: int) -> str:
        """A stride, in elements."""
        return self._get(("stride", tensor, dim), "stride", f"{tensor}_stride_{dim}", "", f"{tensor}.stride({dim})")

    def size(self, size: Size) -> str:
        """A size; whole expressions are evaluated by the launcher."""
        if isinstance(size, Const):
            return str(size.value)
        if isinstance(size, IntArg):
            return self.scalar(size.name)
        return self._get(size, "size", f"{stem(size)}_size{_dim(size)}", "", host(size))

    def scalar(self, name: str) -> str:
        """A number argument. Annotated, as Triton would take a float for float32; bools go as integers."""
        dtype = self._scalars[name].dtype
        annotation, passed = ("tl.int32", f"int({name})") if dtype == "bool" else (DTYPES[dtype], name)
        return self._found.setdefault(("scalar", name), Parameter("scalar", name, annotation, passed)).name

    def block(self, extent: Extent) -> str:
        """How many lanes an extent has: a power of two."""
        if isinstance(extent, Fixed):
            return str(extent.size)
        if isinstance(extent, Block):
            found = self._found.setdefault(extent, Parameter("block", extent.axis, "tl.constexpr", extent.axis))
            return found.name
        lowest = 16 if extent in self._contractions else 1  # what tl.dot takes
        size = f"triton.next_power_of_2(max({host(extent.size)}, {lowest}))"
        return self._get(extent, "block", f"{stem(extent.size)}_block{_dim(extent.size)}", "tl.constexpr", size)

    def sorted(self) -> list[Parameter]:
        """All of them in the order of the signature."""
        return sorted(self._found.values(), key=lambda parameter: _ORDER[parameter.kind])

    def _get(self, key: object, kind: Kind, hint: str, annotation: str, argument: str) -> str:
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = Parameter(kind, self._names.unique(hint), annotation, argument)
        return found.name


def stem(size: Size) -> str:
    """What names about a size begin with."""
    return size.tensor if isinstance(size, Dim) else size.name if isinstance(size, IntArg) else "whole"


def _dim(size: Size) -> str:
    return f"_{size.axis}" if isinstance(size, Dim) else ""


def index_name(extent: Whole) -> str:
    """What the indices of a whole dimension are called."""
    return f"{stem(extent.size)}_index{_dim(extent.size)}"


def host(size: Size) -> str:
    """A size as an expression over the tensors and integers of the launching function."""
    if isinstance(size, Const):
        return str(size.value)
    if isinstance(size, IntArg):
        return size.name
    if isinstance(size, Dim):
        return f"{size.tensor}.size({size.axis})"
    left, right = host(size.left), host(size.right)
    return (
        f"{size.operator}({left}, {right})" if size.operator in ("min", "max") else f"({left} {size.operator} {right})"
    )
