"""Scratch memory for tiles: how large, how it is strided, and when a tile may have any."""

from __future__ import annotations

from helium import dtypes
from helium.contract import Extent as Count
from helium.emit.cpu.code import V
from helium.emit.cpu.frame import Frame
from helium.emit.cpu.passes import Passes
from helium.emit.cpu.scope import Buffer
from helium.errors import UnsupportedKernel
from helium.types import Block, Extent, Value, Whole

PADDING = 32
"""Elements added to each dimension of a matrix in scratch, so that whole register tiles of a product fit."""


class Tiles:
    """Allocates buffers. Without `dynamic`, only tiles of constant size can have one."""

    def __init__(self, frame: Frame, passes: Passes, dynamic: bool) -> None:
        self.frame, self.passes, self.dynamic = frame, passes, dynamic

    def allowed(self, value: Value) -> bool:
        """Whether `value` can be kept in scratch."""
        counts = [self._count(extent) for extent in self.passes.domain(value)]
        return all(count is not None and (self.dynamic or isinstance(count, int)) for count in counts)

    def make(self, value: Value, line: int) -> Buffer:
        """A buffer for `value`.

        Raises:
            UnsupportedKernel: Its size is not known at compile time, and must be.
        """
        if not self.allowed(value):
            raise UnsupportedKernel(
                self.frame.plan.kernel.name, f"a tile {value.type} must be kept, and its size is a symbol", line,
                "give that dimension as a number, or loop over it with hl.tile",
            )  # fmt: skip
        domain = self.passes.domain(value)
        padding = PADDING if len(domain) > 1 else 0
        counts = [(self._count(extent) or 0, padding) for extent in domain]
        itemsize = dtypes.BYTES[value.type.dtype]
        pointer = self.frame.scratch(counts, itemsize)
        return Buffer(pointer, value.type.dtype, self._strides(value, dict(zip(domain, counts, strict=True))))

    def count_of(self, value: Value, line: int) -> Count:
        """The padded size of a vector tile.

        Raises:
            UnsupportedKernel: As :meth:`make`.
        """
        if not self.allowed(value):
            self.make(value, line)
        extents = self.passes.domain(value)
        return (self._count(extents[0]) or 0) if extents else 1

    def _strides(self, value: Value, counts: dict[Extent, tuple[Count, int]]) -> tuple[V | None, ...]:
        c = self.frame.code
        strides: list[V | None] = []
        stride: V = c.i64(1)
        for extent in reversed(value.type.shape):
            if not self.passes.wide(extent):
                strides.append(None)
                continue
            strides.append(stride)
            count, padding = counts[extent]
            size = (
                c.i64(count + padding) if isinstance(count, int) else c.b.add(self.frame.extent(count), c.i64(padding))
            )
            known = isinstance(count, int) and hasattr(stride, "constant")
            stride = c.i64(stride.constant * size.constant) if known else c.b.mul(stride, size)
        return tuple(reversed(strides))

    def _count(self, extent: Extent) -> Count | None:
        if isinstance(extent, Block):
            return self.frame.plan.blocks[extent.axis]
        return self.frame.symbolic(extent.size) if isinstance(extent, Whole) else extent.size
