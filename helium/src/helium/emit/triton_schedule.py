"""The default schedule of an emitted Triton kernel: block sizes by axis, warps; and what a given config makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from helium import ir
from helium.config import Config
from helium.ir import axes
from helium.rewrite import transform
from helium.schedule import given
from helium.sizes import Size
from helium.types import Block, Extent, Whole

_ELEMENTWISE: Final = 1024  # elements of a program that only maps
_FOLDING: Final = 2048  # elements of a program that folds rows
_INNER: Final = 1024  # elements of a row taken at a time
_DOT: Final = {2: (128, 64), 4: (64, 32), 8: (32, 16)}  # rows and columns, contraction; by bytes of an operand
_LONG: Final = 1 << 20  # a size that is not known


@dataclass(frozen=True, slots=True)
class Schedule:
    """A power of two for every axis, and the options of the launch."""

    blocks: dict[str, int]
    options: dict[str, int]


def schedule(kernel: ir.Kernel, config: Config, size: Callable[[Size], int | None], bytes: int) -> Schedule:
    """`config` over the default for these sizes; block sizes are rounded up to powers of two.

    Args:
        size: The number that a size is, None where it is not known.
        bytes: Of an element of what the dots of the kernel take.

    Raises:
        ConfigError: The config names no axis of the kernel.
    """
    ends = {axis.name: _end(axis, size) for axis in axes(kernel.loops)}
    asked = given(kernel, config)
    blocks = _dots(kernel, bytes)
    for loop in kernel.loops:
        _fill(loop, blocks, ends, _wholes(loop, size))
    clamped = {name: max(min(block, ends[name]), _lowest(name, kernel)) for name, block in blocks.items()}
    rounded = {name: power_of_two(block) for name, block in asked.items()}
    warps = {"num_warps": 8} if max(clamped.values(), default=1) >= 128 and contractions(kernel) else {}
    return Schedule(clamped | rounded, {"num_warps": 4} | warps | dict(config.options))


def contractions(kernel: ir.Kernel) -> frozenset[Extent]:
    """The extents of every operand and result of a dot: tl.dot takes 16 lanes or more of each."""
    found: set[Extent] = set()

    def see(node: object) -> object:
        if isinstance(node, ir.Dot):
            found.update(node.left.type.shape, node.right.type.shape)
        return node

    transform(kernel.loops, see)
    return frozenset(found)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`, and at least 1."""
    return 1 << max(0, number - 1).bit_length()


def _lowest(name: str, kernel: ir.Kernel) -> int:
    return 16 if Block(name) in contractions(kernel) else 1


def _dots(kernel: ir.Kernel, bytes: int) -> dict[str, int]:
    """Block sizes of the axes that meet in dots."""
    outer, inner = _DOT.get(bytes, _DOT[4])
    names = {extent.axis for extent in contractions(kernel) if isinstance(extent, Block)}
    grid = {axis.name for loop in kernel.loops for axis in loop.axes}
    return {name: outer if name in grid else inner for name in names}


def _fill(loop: ir.Loop, blocks: dict[str, int], ends: dict[str, int], row: int) -> None:
    """Give every other axis of a top-level loop its share of what a program takes, the last axis first."""
    for axis in axes(loop.body):
        row = max(row, blocks.setdefault(axis.name, min(_INNER, ends[axis.name])))
    rest = max(1, (_FOLDING if row > 1 else _ELEMENTWISE) // row)
    for axis in reversed(loop.axes):
        rest = max(1, rest // blocks.setdefault(axis.name, min(rest, ends[axis.name])))


def _wholes(loop: ir.Loop, size: Callable[[Size], int | None]) -> int:
    """Elements of the longest whole dimension in a loop, padded."""
    longest = 1

    def see(node: object) -> object:
        nonlocal longest
        if isinstance(node, Whole):
            longest = max(longest, power_of_two(size(node.size) or 1))
        return node

    transform(loop, see)
    return longest


def _end(axis: ir.Axis, size: Callable[[Size], int | None]) -> int:
    """The extent of an axis as a power of two; long where a value or an unknown size bounds it."""
    ends = [size(bound) if not hasattr(bound, "number") else None for bound in (axis.begin, axis.end)]
    begin, end = ends
    return _LONG if begin is None or end is None else power_of_two(end - begin)
