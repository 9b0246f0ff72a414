"""Subscripts of host tensors inside loops: which dimension each index makes, and the guards that keep it in bounds."""

from __future__ import annotations

from collections.abc import Sequence

from helium import ir
from helium.errors import DTypeMismatch, IndexMismatch, ShapeMismatch, UnsupportedSyntax
from helium.frontend.builder import Builder, Operand
from helium.frontend.values import SIZES, ScalarRef, TensorRef, TileVar, Weak, as_size
from helium.sizes import Const, Size
from helium.types import Block, Extent, Fixed, TileType, Value, Whole


class Access:
    """The indices of one access, worked out once for loads and stores."""

    def __init__(self, builder: Builder, tensor: TensorRef, items: Sequence[object], ends: dict[str, Size]) -> None:
        self.builder, self.tensor, self.ends = builder, tensor, ends
        self.shape: list[Extent] = []
        items = list(_flatten(items))
        if len(items) != len(tensor.shape):
            raise IndexMismatch(
                f"{tensor.name} has {len(tensor.shape)} dimensions and is indexed with {len(items)}",
                fix="give one index for each dimension, `:` for a whole one",
            )
        pending = [self._index(item, dim) for dim, item in enumerate(items)]
        self.indices = tuple(self._finish(index) for index in pending)

    def load(self, mask: Operand | None = None) -> Value:
        """The tile at these indices."""
        where = self._mask(mask)
        kind = TileType(self.tensor.dtype, tuple(self.shape))
        line = self.builder.line
        return self.builder.define(kind, lambda r: ir.Load(r, self.tensor.name, self.indices, where, line))

    def store(self, value: Operand, mask: Operand | None = None) -> None:
        """Write `value`, converted and stretched, at these indices."""
        where = self._mask(mask)
        tile = self.builder.tile(value, self.tensor.dtype)
        if len(tile.type.shape) > len(self.shape):
            shown = f"[{', '.join(map(str, tile.type.shape))}]"
            raise ShapeMismatch(
                f"a tile of shape {shown} does not fit {len(self.shape)} indexed dimensions of {self.tensor.name}",
                fix="reduce the tile first, or index more dimensions",
            )
        tile = self.builder.broadcast(tile, tuple(self.shape))
        self.builder.append(ir.Store(self.tensor.name, self.indices, tile, where, self.builder.line))

    def _mask(self, mask: Operand | None) -> Value | None:
        if mask is None:
            return None
        return self.builder.broadcast(self.builder.tile(mask, "bool"), tuple(self.shape))

    def _index(self, item: object, dim: int) -> ir.Index:
        size = self.tensor.shape[dim]
        if isinstance(item, TileVar):
            self.builder.guard(self.ends[item.axis], "<=", size)
            return ir.AxisIndex(item.axis, self._dimension(Block(item.axis)))
        if isinstance(item, slice):
            return self._slice(item, size)
        if isinstance(item, (Value, Weak, ScalarRef, int, *SIZES)) and not isinstance(item, bool):
            return self._value(item)
        raise UnsupportedSyntax(
            f"{self.tensor.name} is indexed with {type(item).__name__}",
            fix="index with tiles, `:`, integers or integer tiles",
        )

    def _slice(self, item: slice, size: Size) -> ir.WholeIndex:
        if item.start not in (None, 0) or item.step not in (None, 1):
            raise UnsupportedSyntax("a slice that starts or steps", fix="use `:` or `:n`, or a tile loop with a begin")
        stop = size if item.stop is None else as_size(item.stop)
        self.builder.guard(stop, "<=", size)
        extent: Extent = Fixed(1) if stop == Const(1) else Whole(stop)
        self.shape.append(extent)
        return ir.WholeIndex(stop, len(self.shape) - 1)

    def _value(self, item: Value | Weak | ScalarRef | int | Size) -> ir.ValueIndex:
        value = self.builder.tile(item)
        if value.type.dtype not in ("int64", "int32", "int16", "int8", "uint8"):
            raise DTypeMismatch(f"an index of dtype {value.type.dtype}", fix="convert it: index.to(torch.int64)")
        for extent in value.type.shape:
            self._dimension(extent)
        return ir.ValueIndex(value)

    def _dimension(self, extent: Extent) -> int:
        """The dimension of the access that `extent` is: an axis is one dimension however often it is named."""
        if isinstance(extent, Block) and extent in self.shape:
            return self.shape.index(extent)
        self.shape.append(extent)
        return len(self.shape) - 1

    def _finish(self, index: ir.Index) -> ir.Index:
        if not isinstance(index, ir.ValueIndex) or not index.value.type.shape:
            return index
        value, shape = index.value, tuple(self.shape)
        for dim, extent in enumerate(shape):
            if dim >= len(value.type.shape) or value.type.shape[dim] != extent:
                value = self.builder.unsqueeze(value, dim)
        return ir.ValueIndex(self.builder.broadcast(value, shape))


def _flatten(items: Sequence[object]) -> list[object]:
    flat: list[object] = []
    for item in items:
        flat.extend(_flatten(item) if isinstance(item, tuple) else [item])
    return flat
