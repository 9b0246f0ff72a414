"""Size expressions: integers known only when a kernel is called, as small immutable trees.

A size is a constant, one dimension of a tensor argument, an integer argument, or an arithmetic operation on sizes. All
emitters and the launcher evaluate the same trees, so a new row count never needs a new compile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Operator: TypeAlias = Literal["+", "-", "*", "//", "%", "min", "max"]


@dataclass(frozen=True, slots=True)
class Const:
    """An integer known at compile time."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Dim:
    """``tensor.shape[axis]`` of an argument or of an output; `axis` is never negative."""

    tensor: str
    axis: int

    def __str__(self) -> str:
        return f"{self.tensor}.{self.axis}"


@dataclass(frozen=True, slots=True)
class IntArg:
    """An integer argument of the kernel."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on two sizes; ``//`` and ``%`` floor as in Python."""

    operator: Operator
    left: Size
    right: Size

    def __str__(self) -> str:
        if self.operator in ("min", "max"):
            return f"{self.operator}({self.left}, {self.right})"
        return f"({self.left} {self.operator} {self.right})"


Size: TypeAlias = Const | Dim | IntArg | Operation

_FUNCTIONS: dict[Operator, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def operation(operator: Operator, left: Size, right: Size) -> Size:
    """The expression ``left operator right``, folded where both are constants or one is neutral."""
    if isinstance(left, Const) and isinstance(right, Const):
        return Const(_FUNCTIONS[operator](left.value, right.value))
    if operator in ("*", "//") and right == Const(1):
        return left
    if operator in ("+", "-") and right == Const(0):
        return left
    if (operator == "*" and left == Const(1)) or (operator == "+" and left == Const(0)):
        return right
    return Operation(operator, left, right)


def evaluate(size: Size, lookup: Callable[[Dim | IntArg], int]) -> int:
    """The value of `size`, asking `lookup` for dimensions and integer arguments."""
    if isinstance(size, Const):
        return size.value
    if isinstance(size, Operation):
        return _FUNCTIONS[size.operator](evaluate(size.left, lookup), evaluate(size.right, lookup))
    return lookup(size)


def leaves(size: Size) -> tuple[Dim | IntArg, ...]:
    """Every dimension and integer argument that `size` reads, in order, with repetitions."""
    if isinstance(size, Const):
        return ()
    if isinstance(size, Operation):
        return leaves(size.left) + leaves(size.right)
    return (size,)
