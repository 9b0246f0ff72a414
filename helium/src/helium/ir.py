"""The typed tile IR: what a kernel means, before anyone decides how it runs.

Invariants that every emitter may rely on
-----------------------------------------
*Specialisation.* A :class:`Kernel` is specialised to the dtypes and ranks of its arguments, never to sizes or strides.
Sizes are the symbols of :mod:`helium.sizes`; strides do not appear: an access names a tensor and its indices.

*Grid.* ``Kernel.loops`` are the top-level loops, run one after the other. Each is a grid: its iterations are
independent, may run in any order or in parallel, and carry no values. A :class:`Loop` nested in a body is sequential,
visits its tiles in ascending order and may carry values (accumulators).

*Axes and blocks.* Each loop introduces one or more :class:`Axis`. Axis names are unique in a kernel: the user's own
loop variable, with ``_1``, ``_2`` … appended on reuse. ``Config.blocks[axis.name]`` is its block size; the IR
contains a number for it only where the user wrote one (``Axis.block``). Block sizes never change what a kernel
computes, apart from the order of floating point sums.

*Types.* (:mod:`helium.types`.) A value is a tile: a dtype and a tuple of extents. An extent is ``Block(axis)`` (one
block of that axis), ``Whole(size)`` (a whole dimension, as in ``x[tile, :]``) or ``Fixed(n)`` (a constant; ``Fixed(1)``
stretches under :class:`Broadcast`). A scalar has no extents. Operands of elementwise operations have already been made
equal in shape and dtype by explicit :class:`Broadcast` and :class:`Cast`; half precision arithmetic is already widened
to float32. An axis is a named dimension: it occurs at most once in a shape.

*Masks.* Masks are implied by types and never spelt out: a lane of ``Block(axis)`` is live while its index is below the
axis' end, a lane of ``Whole(size)`` while it is below size (blocks may be padded). The content of dead lanes is
undefined. Loads must not touch memory for dead lanes; stores do not write them; :class:`Reduce` skips them along its
dimension; :class:`Dot` skips them along the contraction. Everything else may compute garbage in them. The reference
executor poisons them, so that an emitter or a kernel that leaks one is found.

*SSA.* Every :class:`Value` is defined once, before its use, in the same body or in an enclosing one.

*Lines.* Each instruction carries ``line``, the 1-based line in the user's file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from helium.sizes import Size
from helium.types import ArithmeticOp, CompareOp, DType, ReduceOp, UnaryOp, Value

# Indices of a load or a store: one per dimension of the tensor.


@dataclass(frozen=True, slots=True)
class AxisIndex:
    """The indices of the current block of `axis`; they are dimension `dim` of the accessed tile."""

    axis: str
    dim: int


@dataclass(frozen=True, slots=True)
class WholeIndex:
    """Every index 0 … size-1; they are dimension `dim` of the accessed tile, whose extent is ``Whole(size)``."""

    size: Size
    dim: int


@dataclass(frozen=True, slots=True)
class ValueIndex:
    """An integer value: a scalar, or a tile already broadcast to the whole shape of the access (gather, scatter).

    Lanes whose value lies outside 0 … dimension-1 are dead for this access: a load gives 0, a store writes nothing.
    """

    value: Value


Index: TypeAlias = AxisIndex | WholeIndex | ValueIndex


# Instructions.


@dataclass(frozen=True, slots=True)
class Constant:
    """A scalar literal of the result's dtype; bool, int or float (possibly inf or nan)."""

    result: Value
    value: bool | int | float
    line: int


@dataclass(frozen=True, slots=True)
class Argument:
    """A scalar argument of the kernel, in its declared dtype."""

    result: Value
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class SizeValue:
    """A size as an int64 scalar."""

    result: Value
    size: Size
    line: int


@dataclass(frozen=True, slots=True)
class AxisValue:
    """A fact of the current block: ``index`` is int64[Block(axis)]; the others are int64 scalars.

    ``end`` is min(begin + block_size, axis end); ``id`` is begin // block_size counted from the axis' begin.
    """

    result: Value
    axis: str
    fact: Literal["index", "begin", "end", "block_size", "id"]
    line: int


@dataclass(frozen=True, slots=True)
class Load:
    """Read a tile of `tensor`. Where `mask` (bool, the result's shape) is false the lane is 0, memory untouched."""

    result: Value
    tensor: str
    indices: tuple[Index, ...]
    mask: Value | None
    line: int


@dataclass(frozen=True, slots=True)
class Store:
    """Write `value` (already of the tensor's dtype) to `tensor`, live lanes only, and only where `mask` is true."""

    tensor: str
    indices: tuple[Index, ...]
    value: Value
    mask: Value | None
    line: int


@dataclass(frozen=True, slots=True)
class Cast:
    """Convert as torch does: to integers by truncation, to bool by ``!= 0``, to floats by rounding to nearest even."""

    result: Value
    source: Value
    line: int


@dataclass(frozen=True, slots=True)
class Unsqueeze:
    """Insert an extent of ``Fixed(1)`` at `dim`."""

    result: Value
    source: Value
    dim: int
    line: int


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Stretch to the result's shape; aligned on the right, missing or ``Fixed(1)`` extents repeat. Scalars too."""

    result: Value
    source: Value
    line: int


@dataclass(frozen=True, slots=True)
class Transpose:
    """Reorder dimensions: result dimension i is source dimension ``order[i]``."""

    result: Value
    source: Value
    order: tuple[int, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Unary:
    """Elementwise, on one operand of the result's type."""

    result: Value
    op: UnaryOp
    source: Value
    line: int


@dataclass(frozen=True, slots=True)
class Binary:
    """Elementwise, on two operands of the result's type. ``max``, ``min`` propagate NaN; ``div`` is of floats only."""

    result: Value
    op: ArithmeticOp
    left: Value
    right: Value
    line: int


@dataclass(frozen=True, slots=True)
class Compare:
    """Elementwise on two operands of equal type; the result is bool. IEEE: only ``ne`` is true for NaN."""

    result: Value
    op: CompareOp
    left: Value
    right: Value
    line: int


@dataclass(frozen=True, slots=True)
class Select:
    """`then` where `condition` (bool, same shape) is true, else `otherwise`."""

    result: Value
    condition: Value
    then: Value
    otherwise: Value
    line: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Fold dimension `dim` away over its live lanes, in the source's dtype; ``max`` and ``min`` propagate NaN.

    The order of a sum or product is free. No live lane gives the identity (0, 1, -inf, +inf or the dtype's limits).
    """

    result: Value
    op: ReduceOp
    source: Value
    dim: int
    line: int


@dataclass(frozen=True, slots=True)
class Dot:
    """``left[m, k] @ right[k, n] (+ accumulator[m, n])``: operands of one dtype, result float32 (float64 of float64).

    Only live lanes of k count; the order of the sum is free.
    """

    result: Value
    left: Value
    right: Value
    accumulator: Value | None
    line: int


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of a loop: indices begin … end-1 in blocks. `end` may be a size or an int64 scalar value.

    `block` is the block size that the kernel itself fixes, which no schedule changes; None leaves it to the schedule.
    """

    name: str
    begin: Size | Value
    end: Size | Value
    block: int | None = None


@dataclass(frozen=True, slots=True)
class Carried:
    """A value that lives across iterations: `initial` enters as `entry`, each iteration ends with `update`.

    `result` is the last of them, and `initial` without an iteration. All four have one type.
    """

    initial: Value
    entry: Value
    update: Value
    result: Value


@dataclass(frozen=True, slots=True)
class Loop:
    """Visit every combination of blocks of `axes`, the last axis fastest. `carried` is empty in a top-level loop."""

    axes: tuple[Axis, ...]
    body: tuple[Instruction, ...]
    carried: tuple[Carried, ...]
    line: int


def axes(body: Iterable[Instruction]) -> Iterator[Axis]:
    """Every axis of the loops in a body and of the loops in them, outermost first."""
    for instruction in body:
        if isinstance(instruction, Loop):
            yield from instruction.axes
            yield from axes(instruction.body)


Instruction: TypeAlias = (
    Constant | Argument | SizeValue | AxisValue | Load | Store | Cast | Unsqueeze | Broadcast | Transpose
    | Unary | Binary | Compare | Select | Reduce | Dot | Loop
)  # fmt: skip


# The kernel.


@dataclass(frozen=True, slots=True)
class TensorParam:
    """A tensor argument."""

    name: str
    dtype: DType
    rank: int


@dataclass(frozen=True, slots=True)
class ScalarParam:
    """A number argument: Python float (float64), int (int64) or bool."""

    name: str
    dtype: Literal["float64", "int64", "bool"]


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that the kernel makes, row-major; `shape` over the arguments' sizes; `fill` None: uninitialised."""

    name: str
    dtype: DType
    shape: tuple[Size, ...]
    fill: int | float | None
    line: int


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on sizes to be checked before anything runs: ``left relation right``."""

    left: Size
    relation: Literal["<=", "=="]
    right: Size
    line: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A whole kernel. Native signature: buffers are the tensor params in order, then the outputs in order."""

    name: str
    params: tuple[TensorParam | ScalarParam, ...]
    outputs: tuple[Output, ...]
    guards: tuple[Guard, ...]
    loops: tuple[Loop, ...]
    returns: tuple[str, ...]
    """Names of the returned tensors (outputs, or parameters written in place), in order."""
    returns_tuple: bool
    file: str
    first_line: int

    def __str__(self) -> str:
        from helium.printing import show

        return show(self)

    @property
    def fixed_blocks(self) -> dict[str, int]:
        """The block sizes that the kernel itself fixes, by axis."""
        return {axis.name: axis.block for axis in axes(self.loops) if axis.block is not None}

    @property
    def tensors(self) -> dict[str, TensorParam | Output]:
        """Every buffer by name, parameters first."""
        inputs: dict[str, TensorParam | Output] = {p.name: p for p in self.params if isinstance(p, TensorParam)}
        return inputs | {o.name: o for o in self.outputs}
