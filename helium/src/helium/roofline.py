"""What this machine can do: memory bandwidth and arithmetic measured by small kernels, and a kernel's bound by them."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from helium import dtypes, ir
from helium.emit.cpu import analysis
from helium.runtime.compile import shape_of
from helium.specialise import Bound
from helium.types import Extent, Fixed, Whole

LEAST_BYTES, MOST_BYTES = 1 << 16, 1 << 28
"""The bandwidth probe moves as many bytes as the kernel, between these: so its data lie in the same caches."""
SIDE = 512
"""Rows and columns of the arithmetic probe."""
PROBE = 0.2
"""Seconds of each probe: long enough that its fastest run is undisturbed on a shared machine."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Measured limits, with `threads` threads.

    Attributes:
        bandwidth: Bytes per second, read and written together, that a copy of so many bytes moves.
        flops: float32 operations per second of a matrix product.
    """

    threads: int
    bandwidth: Callable[[int], float]
    flops: float

    def seconds(self, bytes_moved: int, flops: int) -> float:
        """The least time for this much work."""
        return max(bytes_moved / self.bandwidth(bytes_moved), flops / self.flops)


def measure(call: Callable[[], object], least: float = 0.03, repeats: int = 5) -> float:
    """Seconds of one call: the fastest of `repeats` runs or more, until `least` seconds have gone by."""
    call()
    best, begun, count = math.inf, time.perf_counter(), 0
    while count < repeats or time.perf_counter() - begun < least:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        count += 1
    return best


def roofline() -> Roofline:
    """The limits of this machine with torch's present number of threads, measured once for each in a process."""
    return _roofline(torch.get_num_threads())


@functools.cache
def _roofline(threads: int) -> Roofline:
    square = torch.randn(SIDE, SIDE)
    product = measure(lambda: torch.mm(square, square), least=PROBE)

    def bandwidth(moved: int) -> float:
        return _copy(threads, 1 << (min(max(moved, LEAST_BYTES), MOST_BYTES) - 1).bit_length())

    return Roofline(threads, bandwidth, 2 * SIDE**3 / product)


@functools.cache
def _copy(threads: int, moved: int) -> float:
    """Bytes per second of a copy that reads half of `moved` bytes and writes the other half."""
    source = torch.ones(moved // 8)
    target = torch.empty_like(source)
    return moved / measure(lambda: target.copy_(source), least=PROBE)


@dataclass(frozen=True, slots=True)
class Work:
    """What a call must move and compute at the least: each tensor once, each operation of the kernel once."""

    bytes: int
    flops: int


def work(kernel: ir.Kernel, bound: Bound) -> Work:
    """The work of a kernel on these arguments. Elementary functions count as ten operations."""
    moved = sum(t.numel() * t.element_size() for t in bound.tensors.values())
    for output in kernel.outputs:
        moved += math.prod(shape_of(output, bound.tensors, bound.scalars)) * dtypes.BYTES[output.dtype]
    axes = {axis.name: axis for loop in kernel.loops for axis in _axes(loop)}
    flops = sum(_each(i) * _times(i, bound, axes) for loop in kernel.loops for i in analysis.walk(loop.body))
    return Work(moved, flops)


def _axes(loop: ir.Loop) -> list[ir.Axis]:
    return [*loop.axes, *(axis for i in analysis.walk(loop.body) if isinstance(i, ir.Loop) for axis in i.axes)]


def _each(i: ir.Instruction) -> int:
    if isinstance(i, ir.Dot):
        return 2
    if isinstance(i, (ir.Binary, ir.Compare, ir.Select, ir.Reduce)):
        return 1
    return (10 if analysis.is_costly(i) else 1) if isinstance(i, ir.Unary) else 0


def _times(i: ir.Instruction, bound: Bound, axes: Mapping[str, ir.Axis]) -> int:
    """How many lanes an instruction has over all its iterations, as if its axes were walked once each."""
    shape: tuple[Extent, ...] = ()
    if isinstance(i, ir.Dot):
        shape = (*i.left.type.shape, i.right.type.shape[1])
    elif isinstance(i, ir.Reduce):
        shape = i.source.type.shape
    elif not isinstance(i, (ir.Store, ir.Loop)):
        shape = i.result.type.shape
    return math.prod(_extent(extent, bound, axes) for extent in shape)


def _extent(extent: Extent, bound: Bound, axes: Mapping[str, ir.Axis]) -> int:
    if isinstance(extent, Fixed):
        return extent.size
    size: Any = extent.size if isinstance(extent, Whole) else axes[extent.axis].end
    probe = ir.Output("", "float32", (size,), None, 0)
    return int(shape_of(probe, bound.tensors, bound.scalars)[0])
