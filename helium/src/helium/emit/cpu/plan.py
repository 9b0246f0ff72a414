"""What the native emitter is asked for: a kernel, how its tensors lie in memory, block sizes, and the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from helium import ir
from helium.contract import Extent
from helium.types import DType


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor in memory: extents and strides in elements, as numbers or products of the plan's symbols."""

    dtype: DType
    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """What the emitter needs to know of a CPU.

    Attributes:
        triple: LLVM's name of the platform.
        cpu: LLVM's name of the processor model.
        features: LLVM's feature string, "+avx2,…".
        vector_bytes: Width of a vector register.
        registers: How many vector registers there are.
        converts_halves: Whether it converts float16 by an instruction.
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    registers: int
    converts_halves: bool


@dataclass(frozen=True, slots=True)
class Pool:
    """An OpenMP thread pool in this process: the addresses of GOMP_parallel and omp_get_thread_num."""

    fork: int
    number: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One compilation.

    Attributes:
        kernel: The IR.
        layouts: Every tensor's layout, in the order of the buffers.
        symbols: What the entries of `sizes` are; symbols of layouts, then scalar arguments that are not baked in, whose
            entries hold an int64, or the bits of a float64.
        scalars: Scalar arguments that are baked in.
        blocks: Block size by axis.
        machine: The target.
        symbol: Name of the entry point.
        ahead: Whether the code is for another process: no thread count, and no scratch memory of unknown size.
        pool: The threads to share a grid with; None runs it on the calling thread.
    """

    kernel: ir.Kernel
    layouts: Mapping[str, Layout]
    symbols: tuple[str, ...]
    scalars: Mapping[str, float | int | bool]
    blocks: Mapping[str, int]
    machine: Machine
    symbol: str
    ahead: bool
    pool: Pool | None
