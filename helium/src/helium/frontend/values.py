"""What a name can stand for while a kernel is read, besides plain Python objects and tile values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from helium.sizes import Const, Dim, IntArg, Operation, Size
from helium.types import DType, Value

Number: TypeAlias = bool | int | float
SIZES = (Const, Dim, IntArg, Operation)
"""The classes of a size expression."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor of the host: an argument, or an output that the kernel makes."""

    name: str
    dtype: DType
    shape: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class TileVar:
    """The variable of a tile loop: the current block of `axis`."""

    axis: str


@dataclass(frozen=True, slots=True)
class ScalarRef:
    """A float or bool argument of the kernel."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Weak:
    """A scalar that promotes like a Python number: an argument, a size, or arithmetic on those."""

    value: Value


@dataclass(frozen=True, slots=True)
class Relation:
    """A comparison of sizes, which only `assert` can use."""

    left: Size
    relation: str
    right: Size


@dataclass(frozen=True, slots=True)
class Device:
    """The device of the arguments, or the kernel's own name for it."""


@dataclass(frozen=True, slots=True)
class Method:
    """A method bound to a tile or to a host tensor."""

    owner: object
    name: str


@dataclass(frozen=True, slots=True)
class Missing:
    """The second result of ``max(dim)``: the indices, which tiles do not compute."""

    reason: str


def as_size(value: int | Size) -> Size:
    """A Python integer or a size as a size."""
    return Const(value) if isinstance(value, int) else value


def from_size(size: Size) -> int | Size:
    """A constant size as a Python integer, any other as it is."""
    return size.value if isinstance(size, Const) else size
