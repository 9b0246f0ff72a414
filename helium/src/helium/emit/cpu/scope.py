"""Where the emitter stands: current blocks of axes, scalars in registers, tiles in scratch; and lane coordinates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from helium.emit.cpu.code import V
from helium.types import DType, Value


@dataclass(frozen=True, slots=True, eq=False)
class Coord:
    """A place along one dimension: a lane index, or `lanes` lanes from it on, of which `mask` are live (None: all)."""

    index: V
    lanes: int = 1
    mask: V = None


@dataclass(frozen=True, slots=True)
class AxisState:
    """The current block of an axis. Lane 0 has the index `base`, `count` lanes are live; the rest are its facts."""

    base: V
    count: V
    begin: V
    end: V
    number: V
    block: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tile in scratch memory: element strides by dimension (None where the dimension has one lane)."""

    pointer: V
    dtype: DType
    strides: tuple[V | None, ...]


@dataclass(slots=True)
class Scope:
    """What has been computed so far, here."""

    axes: dict[str, AxisState] = field(default_factory=dict)
    scalars: dict[Value, V] = field(default_factory=dict)
    buffers: dict[Value, Buffer] = field(default_factory=dict)

    def child(self) -> Scope:
        """A scope inside this one."""
        return replace(self, axes=dict(self.axes), scalars=dict(self.scalars), buffers=dict(self.buffers))
