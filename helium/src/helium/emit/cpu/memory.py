"""Loads and stores of one element or one vector: runs where the layout allows, gathered or scattered where not."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir as llvm

from helium import dtypes
from helium.emit.cpu.code import I1, I32, I64, MEMORY, POINTER, REGISTER, Code, V
from helium.types import DType


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """An element offset from a pointer: one place, consecutive places from it on, or a vector of places."""

    pointer: V
    offset: V
    lanes: int
    mask: V
    """i1, or a vector of it; None where every lane is live."""

    @property
    def consecutive(self) -> bool:
        """Whether `offset` is the first of consecutive elements."""
        return self.lanes > 1 and not isinstance(self.offset.type, llvm.VectorType)


def load(c: Code, place: Place, dtype: DType, dummy: V) -> V:
    """The elements at `place`, 0 in dead lanes, in register form."""
    size, element = dtypes.BYTES[dtype], MEMORY[dtype]
    if place.lanes == 1:
        raw = _load_one(c, place, element, size, dummy)
    elif place.consecutive:
        raw = _load_run(c, place, element, size)
    else:
        kind = llvm.VectorType(element, place.lanes)
        pointers = c.b.gep(place.pointer, [place.offset], source_etype=element)
        pointers = _pointer_vector(c, pointers, place.lanes)
        raw = c.intrinsic(
            "masked.gather",
            [pointers, c.const(I32, size), _full_mask(c, place), c.const(kind, 0)],
            kind,
            [kind, pointers.type],
        )
    return c.b.icmp_signed("!=", raw, c.const(raw.type, 0)) if dtype == "bool" else raw


def _load_one(c: Code, place: Place, element: V, size: int, dummy: V) -> V:
    address = c.offset(place.pointer, place.offset, element)
    if place.mask is None:
        return c.load(address, element, size)
    raw = c.load(c.b.select(place.mask, address, dummy), element, size)
    return c.b.select(place.mask, raw, c.const(element, 0))


def _load_run(c: Code, place: Place, element: V, size: int) -> V:
    kind = llvm.VectorType(element, place.lanes)
    address = c.offset(place.pointer, place.offset, element)
    if place.mask is None:
        return c.load(address, kind, size)
    return c.intrinsic(
        "masked.load", [address, c.const(I32, size), place.mask, c.const(kind, 0)], kind, [kind, POINTER]
    )


def _pointer_vector(c: Code, pointers: V, lanes: int) -> V:
    """llvmlite gives a gep of a vector of offsets the type of one pointer; this gives it its own."""
    pointers.type = llvm.VectorType(POINTER, lanes)
    return pointers


def _full_mask(c: Code, place: Place) -> V:
    if place.mask is None:
        return c.const(llvm.VectorType(I1, place.lanes), 1)
    return c.splat(place.mask, place.lanes)


def store(c: Code, place: Place, value: V, dtype: DType, dummy: V) -> None:
    """Write `value`, in register form, to the live lanes of `place`."""
    size, element = dtypes.BYTES[dtype], MEMORY[dtype]
    if dtype == "bool":
        value = c.b.zext(value, c.like(value.type, element))
    address = c.b.gep(place.pointer, [place.offset], source_etype=element)
    if place.lanes == 1:
        c.store(value, address if place.mask is None else c.b.select(place.mask, address, dummy), size)
        return
    value = c.splat(value, place.lanes)
    if place.consecutive and place.mask is None:
        c.store(value, address, size)
    elif place.consecutive:
        c.intrinsic(
            "masked.store", [value, address, c.const(I32, size), place.mask], llvm.VoidType(), [value.type, POINTER]
        )
    else:
        pointers = _pointer_vector(c, address, place.lanes)
        c.intrinsic(
            "masked.scatter",
            [value, pointers, c.const(I32, size), _full_mask(c, place)],
            llvm.VoidType(),
            [value.type, pointers.type],
        )


def register_type(dtype: DType, lanes: int) -> V:
    """The register form of `lanes` elements."""
    return llvm.VectorType(REGISTER[dtype], lanes) if lanes > 1 else REGISTER[dtype]


def run_mask(c: Code, start: V, stop: V, lanes: int) -> V:
    """Which of `lanes` lanes from `start` on lie below `stop`."""
    left = c.splat(c.b.sub(stop, start), lanes)
    return c.b.icmp_signed("<", c.iota(lanes, I64), left)
