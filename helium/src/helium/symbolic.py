"""Sizes over the symbols of tensor specs: what a size is when shapes are names such as "n" or "4*n"."""

from __future__ import annotations

from collections.abc import Mapping

from helium.contract import Extent, product
from helium.errors import ArgumentMismatch
from helium.sizes import Const, Dim, IntArg, Size, evaluate


def extent(kernel: str, size: Size, shapes: Mapping[str, tuple[Extent, ...]], integers: Mapping[str, float]) -> Extent:
    """`size` as a number or as a product of symbols.

    Raises:
        ArgumentMismatch: The size is neither; says which.
    """
    if isinstance(size, Const):
        return size.value
    if isinstance(size, IntArg):
        return int(integers[size.name])
    if isinstance(size, Dim):
        return shapes[size.tensor][size.axis]
    left, right = (extent(kernel, side, shapes, integers) for side in (size.left, size.right))
    if isinstance(left, int) and isinstance(right, int):
        return evaluate(type(size)(size.operator, Const(left), Const(right)), lambda leaf: 0)
    if size.operator == "*":
        return product(left, right)
    raise ArgumentMismatch(kernel, f"the size {size} is no product of symbols", "give that dimension as a number")
