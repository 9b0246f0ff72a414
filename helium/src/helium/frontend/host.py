"""The host part of a kernel: sizes of arguments, outputs made with torch's factories, and a few builtins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from helium import dtypes, ir, sizes
from helium import language as hl
from helium.errors import HostOnly, TileOnly, UnknownOperation, WrongArguments
from helium.frontend.values import SIZES, Device, Method, TensorRef, as_size, from_size
from helium.sizes import Size
from helium.types import Value

if TYPE_CHECKING:
    from helium.frontend.expressions import Expressions

Made = ir.Output
"""An output that the kernel has made so far."""


@dataclass(frozen=True, slots=True)
class TileRange:
    """What ``hl.tile(...)`` gives to a `for`: one begin, end and fixed block size per axis.

    `single` if it was called with a number; `points` if the loop variables are indices, as of ``hl.grid``, not tiles.
    """

    begins: tuple[Size, ...]
    ends: tuple[Size, ...]
    blocks: tuple[int | None, ...]
    single: bool
    points: bool = False


def tensor_attribute(tensor: TensorRef, name: str) -> object:
    """``tensor.name`` on the host."""
    if name == "shape":
        return tuple(map(from_size, tensor.shape))
    if name == "dtype":
        return dtypes.TORCH[tensor.dtype]
    if name == "device":
        return Device()
    if name == "ndim":
        return len(tensor.shape)
    if name in METHODS:
        return Method(tensor, name)
    raise UnknownOperation(
        f"{name!r} of the whole tensor {tensor.name}",
        fix="index it with tiles in a loop, and use the tile's operations",
    )


def plain(args: Sequence[object]) -> bool:
    """Whether no argument needs tiles: only numbers and strings."""
    return all(isinstance(arg, (bool, int, float, str)) for arg in args)


def _size(reader: Expressions, tensor: TensorRef, dim: int | None = None) -> object:
    shape = tuple(map(from_size, tensor.shape))
    return shape if dim is None else shape[dim]


def _numel(reader: Expressions, tensor: TensorRef) -> object:
    total: Size = sizes.Const(1)
    for size in tensor.shape:
        total = sizes.operation("*", total, size)
    return from_size(total)


def _make(reader: Expressions, shape: Sequence[Size], dtype: torch.dtype | None, fill: float | None) -> TensorRef:
    if reader.depth:
        raise HostOnly(
            "an output made inside a tile loop", fix="make it before the loop; inside, use hl.zeros or hl.full"
        )
    name, number = reader.target or "out", 1
    while name in reader.outputs or name in reader.scope:
        name, number = f"{reader.target or 'out'}_{number}", number + 1
    kind = dtypes.NAMES[dtype or torch.float32]
    reader.outputs[name] = ir.Output(name, kind, tuple(shape), fill, reader.builder.line)
    return TensorRef(name, kind, tuple(shape))


def _shape(size: tuple[Any, ...]) -> list[Size]:
    entries = size[0] if len(size) == 1 and isinstance(size[0], (list, tuple)) else size
    return [as_size(entry) for entry in entries]


def _factory(fill: float | None) -> Callable[..., TensorRef]:
    def make(reader: Expressions, *size: Any, dtype: torch.dtype | None = None) -> TensorRef:
        return _make(reader, _shape(size), dtype, fill)

    return make


def _factory_like(fill: float | None) -> Callable[..., TensorRef]:
    def make(reader: Expressions, like: TensorRef, dtype: torch.dtype | None = None) -> TensorRef:
        return _make(reader, like.shape, dtype or dtypes.TORCH[like.dtype], fill)

    return make


def _new(fill: float | None) -> Callable[..., TensorRef]:
    def make(reader: Expressions, like: TensorRef, *size: Any, dtype: torch.dtype | None = None) -> TensorRef:
        return _make(reader, _shape(size), dtype or dtypes.TORCH[like.dtype], fill)

    return make


def _full(reader: Expressions, size: Any, fill: float, dtype: torch.dtype | None = None) -> TensorRef:
    return _make(reader, _shape((size,)), dtype, fill)


def _grid(reader: Expressions, begin_or_end: Any, end: Any = None) -> TileRange:
    return replace(_tile(reader, begin_or_end, end, 1), points=True)


def _blocks(block_size: Any, count: int) -> tuple[int | None, ...]:
    blocks = tuple(block_size) if isinstance(block_size, (list, tuple)) else (block_size,) * count
    if len(blocks) != count or not all(block is None or (isinstance(block, int) and block > 0) for block in blocks):
        raise WrongArguments(
            f"block_size={block_size!r} for {count} loop{'s' * (count != 1)}",
            fix="give a positive constant or None for each",
        )
    return blocks


def _tile(reader: Expressions, begin_or_end: Any, end: Any = None, block_size: Any = None) -> TileRange:
    single = not isinstance(begin_or_end, (list, tuple))
    first = [begin_or_end] if single else list(begin_or_end)
    last = first if end is None else [end] if single else list(end)
    begins = [0] * len(last) if end is None else first
    for bound in [*begins, *last]:
        if isinstance(bound, Value) or not isinstance(bound, (int, *SIZES)):
            raise HostOnly("a loop bound that is not a size", fix="use sizes, integer arguments and constants")
    blocks = _blocks(block_size, len(last))
    return TileRange(tuple(map(as_size, begins)), tuple(map(as_size, last)), blocks, single)


def _load(reader: Expressions, tensor: TensorRef, index: Any, extra_mask: Any = None) -> Value:
    return reader.access(tensor, index).load(extra_mask)


def _store(reader: Expressions, tensor: TensorRef, index: Any, value: Any, extra_mask: Any = None) -> None:
    reader.access(tensor, index).store(value, extra_mask)


def _extreme(operator: sizes.Operator, python: Callable[..., Any]) -> Callable[..., object]:
    def handler(reader: Expressions, *items: Any) -> object:
        entries = items[0] if len(items) == 1 else items
        if not any(isinstance(entry, SIZES) for entry in entries):
            return python(entries)
        result = as_size(entries[0])
        for entry in entries[1:]:
            result = sizes.operation(operator, result, as_size(entry))
        return from_size(result)

    return handler


def _tensor(reader: Expressions, value: float) -> float:
    if not reader.depth:
        raise TileOnly("torch.tensor outside a tile loop", fix="use the number itself, inside the loop")
    return value


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.empty: _factory(None),
    torch.zeros: _factory(0),
    torch.ones: _factory(1),
    torch.full: _full,
    torch.empty_like: _factory_like(None),
    torch.zeros_like: _factory_like(0),
    torch.ones_like: _factory_like(1),
    torch.tensor: _tensor,
    hl.tile: _tile,
    hl.grid: _grid,
    hl.load: _load,
    hl.store: _store,
    min: _extreme("min", min),
    max: _extreme("max", max),
}
"""Host functions by what the kernel calls; the first argument is the reader."""

METHODS: dict[str, Callable[..., Any]] = {
    "dim": lambda reader, tensor: len(tensor.shape),
    "new_empty": _new(None),
    "new_zeros": _new(0),
    "numel": _numel,
    "size": _size,
}
"""Methods of whole tensors."""

STRUCTURE = (enumerate, len, list, reversed, tuple, zip)
"""Builtins that look at how values are arranged, and not at the values."""

BUILTINS: dict[str, Any] = {
    f.__name__: f for f in (abs, bool, enumerate, float, int, len, list, max, min, range, reversed, sum, tuple, zip)
}
"""The builtins that a kernel may name."""
