"""The default schedule: block sizes by what an axis does, and for products also by how large they are."""

from __future__ import annotations

from collections.abc import Mapping

from helium import ir
from helium.config import Config
from helium.emit.cpu import analysis
from helium.errors import ConfigError
from helium.types import Block, Extent

POINT = 1
"""Indices per task of an axis that runs point by point; the launcher groups tasks."""
STREAM = 16384
"""Elements per task along memory: long enough to amortise a task, short enough to share."""
CHUNK = 2048
"""Elements of a nested loop's block: with its operands it stays in the first cache between passes."""
ACROSS = 64
"""Lanes of an axis that is reduced over inside a task."""
PRODUCT = (240, 512, 256)
"""Rows, columns and depth of a product's tile: the left panel fits the second cache, the right sliver the first."""
SMALL_PRODUCT = (48, 128, 256)
"""The same for products too small to give every thread several large tiles."""
SMALL = 4 * PRODUCT[0] * PRODUCT[1]
"""Products of fewer results than this are small."""


def choose(kernel: ir.Kernel, config: Config, results: int) -> dict[str, int]:
    """A block size for every axis.

    Args:
        kernel: The IR.
        config: What the user fixed.
        results: Elements of the largest output, for products.

    Raises:
        ConfigError: `config` names no axis of the kernel, or one whose block size the kernel fixes.
    """
    blocks: dict[str, int] = {}
    for loop in kernel.loops:
        points = analysis.point_axes(loop)
        blocks |= _roles(loop, points, SMALL_PRODUCT if results < SMALL else PRODUCT)
    return blocks | given(kernel, config)


def given(kernel: ir.Kernel, config: Config) -> dict[str, int]:
    """The block sizes that are not to be chosen: those of the config and those that the kernel itself fixes.

    Raises:
        ConfigError: `config` names no axis of the kernel, or one whose block size the kernel fixes.
    """
    names, fixed = [axis.name for axis in ir.axes(kernel.loops)], kernel.fixed_blocks
    for name, block in config.blocks.items():
        if name not in names or fixed.get(name, block) != block:
            raise ConfigError(kernel.name, name, names, fixed.get(name))
    return {**config.blocks, **fixed}


def _roles(loop: ir.Loop, points: frozenset[str], product: tuple[int, int, int]) -> dict[str, int]:
    instructions = list(analysis.walk(loop.body))
    blocks = {axis.name: POINT if axis.name in points else STREAM for axis in loop.axes}
    for i in instructions:
        if isinstance(i, ir.Loop):
            blocks |= {axis.name: CHUNK for axis in i.axes}
    for i in instructions:
        if isinstance(i, ir.Reduce):
            _set(blocks, i.source.type.shape[i.dim], ACROSS, {axis.name for axis in loop.axes})
    for i in instructions:
        if isinstance(i, ir.Dot):
            extents = (i.left.type.shape[0], i.right.type.shape[1], i.left.type.shape[1])
            for extent, size in zip(extents, product, strict=True):
                _set(blocks, extent, size, set(blocks))
    return blocks


def _set(blocks: dict[str, int], extent: Extent, size: int, among: set[str] | Mapping[str, int]) -> None:
    if isinstance(extent, Block) and extent.axis in among:
        blocks[extent.axis] = size
