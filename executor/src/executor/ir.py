"""The loop IR: a few kinds of loops over flat buffers, small enough to be interpreted with numpy and emitted as C.

A *program* is a list of *functions* and, for each method, a *block*: buffers, and steps that run a function on some of
them in order. Functions name buffers by parameter number, so equal layers of a model share one.

**Buffers** are dense, row-major and flat: an element is found by one int64 index. bool is one byte, 0 or 1.

**A nest** runs its `body` once for each point of `outer`; the points are independent of each other. Within one point
the statements run in order and see what earlier ones stored. Axes are numbered: those of `outer` first, then the
statement's own `extents`. `Let`, `Reduce` and `Dot` make a scalar, read by later statements of the same point as
`Local(i)`, where `i` is that statement's place in the body.

**Expressions** have one dtype and never convert by themselves: `cast` does. `Axis`, `Size` and `Check` are int64;
arithmetic on indexes is int64. All arguments of every operation are evaluated, both branches of `where` too, as torch
does: every load is in range whatever the conditions around it, and a `Check` in the branch not taken stops the method.

`Op` names, all element-wise, on arguments of equal dtype (the condition of `where` is bool):

    add sub mul         int64 and int32 wrap around
    div                 of floats (IEEE); idiv of integers rounds down, imod is its remainder (Python's // and %)
    fmod trunc_div      C's % (sign of the dividend) and the division that goes with it; fmod also of floats
    pow atan2           of floats
    min max             NaN if either is NaN
    and or xor not      bitwise on integers, logical on bool
    shl shr             of integers; shr keeps the sign
    eq ne lt le gt ge   to bool; isnan likewise
    where               (condition, if true, if false)
    sign                -1, 0 or 1; of NaN it is 0
    neg abs sqrt rsqrt exp exp2 expm1 log log1p log2 sin cos tan tanh sigmoid erf floor ceil trunc reciprocal
    round               half to even
    cast                to `dtype`: float to integer truncates, to bool is `!= 0`

Float sums may be added up in any order, in the dtype of their value; results of exp and its like are within a few
units in the last place. Both are why an interpreter and compiled code differ by rounding, and by no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

Dim: TypeAlias = int | str
"""A size: a number, or an expression over the method's symbols (executor.expressions)."""

BufferKind = Literal["input", "output", "state", "weight", "temp", "parameter"]
Reduction = Literal["sum", "prod", "min", "max", "argmin", "argmax", "any", "all"]

UNARY = frozenset(
    [
        "neg",
        "abs",
        "sign",
        "sqrt",
        "rsqrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "log2",
        "sin",
        "cos",
        "tan",
        "tanh",
        "sigmoid",
        "erf",
        "floor",
        "ceil",
        "trunc",
        "reciprocal",
        "round",
        "not",
        "isnan",
        "cast",
    ]
)
BINARY = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "idiv",
        "imod",
        "fmod",
        "trunc_div",
        "pow",
        "atan2",
        "min",
        "max",
        "and",
        "or",
        "xor",
        "shl",
        "shr",
    ]
)
COMPARISONS = frozenset(["eq", "ne", "lt", "le", "gt", "ge"])


@dataclass(frozen=True, slots=True)
class Const:
    """A number of a dtype."""

    value: bool | int | float
    dtype: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The position along loop axis `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Size:
    """The value of an expression over the method's symbols."""

    expression: str


@dataclass(frozen=True, slots=True)
class Local:
    """What statement `index` of this nest's body made at this point."""

    index: int


@dataclass(frozen=True, slots=True)
class Load:
    """Element `index` of buffer parameter `buffer`."""

    buffer: int
    index: Expr


@dataclass(frozen=True, slots=True)
class Op:
    """An element-wise operation; `dtype` is that of its result."""

    name: str
    dtype: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """An index that came from data: `value`, plus `size` if it is negative and `wrap` is set.

    Where that is not within 0 and `size`, the method stops and returns `code`, its outputs and state unspecified.
    """

    value: Expr
    size: Dim
    wrap: bool
    code: int


Expr: TypeAlias = Const | Axis | Size | Local | Load | Op | Check


@dataclass(frozen=True, slots=True)
class Let:
    """A scalar of its own: `value` at this point."""

    value: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class Reduce:
    """`value` combined over `extents`, in `dtype`; argmin and argmax give the first such flat position as int64.

    `dtype` is that of `value`. NaN is both the least and the greatest. any and all are of bool. Over no elements: sum
    and any give 0, prod and all 1; the others are never asked.
    """

    op: Reduction
    extents: tuple[Dim, ...]
    value: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class Strided:
    """The elements `offset + sum(strides[i] * axis i)` of a buffer, over the outer axes and then the statement's one.

    A stride of 0 repeats.
    """

    buffer: int
    offset: Dim
    strides: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Dot:
    """The float32 sum over `extent` of `left * right`: a matrix product, with the outer axes as rows and columns."""

    extent: Dim
    left: Strided
    right: Strided


@dataclass(frozen=True, slots=True)
class Store:
    """`buffer[index] = value` over `extents`; no element of one point's is read or written by another point."""

    buffer: int
    extents: tuple[Dim, ...]
    index: Expr
    value: Expr


Statement: TypeAlias = Let | Reduce | Dot | Store


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops over `outer`, and what they do; `parameters` are the dtypes of its buffers."""

    parameters: tuple[str, ...]
    outer: tuple[Dim, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class External:
    """A kernel compiled elsewhere: `int symbol(void *const *buffers, const int64_t *sizes, void *workspace)`.

    `parameters` are the dtypes of its buffers: inputs, outputs, and the workspace (uint8) last if `workspace` (bytes)
    is not 0. `sizes` are passed as they are. `reference` does the same by loops: its buffers of kind "parameter" are
    these. An interpreter runs that.
    """

    parameters: tuple[str, ...]
    symbol: str
    digest: str
    sizes: tuple[Dim, ...]
    workspace: int
    reference: Block


Function: TypeAlias = Nest | External


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of a block.

    `index` is its number among the method's inputs or outputs, the program's state or weights, or the parameters of
    the External that the block belongs to; for a temporary it is -1 and `offset` is its place in the arena, in bytes
    (None where nobody has planned it: an interpreter makes an array for each).
    """

    name: str
    kind: BufferKind
    dtype: str
    shape: tuple[Dim, ...]
    index: int = -1
    offset: Dim | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """Run function number `function` on these buffers of the block.

    `operation` and `source` say which operation of the model it comes from, and which line.
    """

    function: int
    buffers: tuple[int, ...]
    operation: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Buffers and the steps over them, in order."""

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class MethodBody:
    """One method: its name, its block, and its arena's size in bytes."""

    name: str
    block: Block
    arena: Dim = 0


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """All methods of a program over one list of functions."""

    functions: tuple[Function, ...]
    methods: tuple[MethodBody, ...]


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly below `expr`."""
    match expr:
        case Load(index=index):
            return (index,)
        case Check(value=value):
            return (value,)
        case Op(args=args):
            return args
    return ()


def walk(expr: Expr) -> Iterator[Expr]:
    """`expr` and everything below it."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def dtype_of(expr: Expr, nest: Nest) -> str:
    """The dtype of `expr` within `nest`."""
    match expr:
        case Const(dtype=dtype) | Op(dtype=dtype):
            return dtype
        case Load(buffer=buffer):
            return nest.parameters[buffer]
        case Local(index=index):
            return made_by(nest.body[index])
    return "int64"


def made_by(statement: Statement) -> str:
    """The dtype of the scalar that a statement makes."""
    match statement:
        case Reduce(op="argmin" | "argmax"):
            return "int64"
        case Let(dtype=dtype) | Reduce(dtype=dtype):
            return dtype
        case Dot():
            return "float32"
    raise AssertionError("a store makes no scalar")
