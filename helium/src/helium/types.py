"""Types and values of the tile IR: dtypes, extents, tiles, and the names of the elementwise operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from helium.sizes import Size

DType: TypeAlias = Literal[
    "bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"
]
UnaryOp: TypeAlias = Literal[
    "neg", "abs", "not", "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "floor", "ceil", "round"
]  # `not` on bool and integers; `round` half to even
ArithmeticOp: TypeAlias = Literal[
    "add", "sub", "mul", "div", "floordiv", "mod", "max", "min", "pow", "and", "or", "xor"
]
CompareOp: TypeAlias = Literal["eq", "ne", "lt", "le", "gt", "ge"]
ReduceOp: TypeAlias = Literal["sum", "prod", "max", "min"]


@dataclass(frozen=True, slots=True)
class Block:
    """The extent of one block of an axis; live lanes are those whose index is below the axis' end."""

    axis: str

    def __str__(self) -> str:
        return self.axis


@dataclass(frozen=True, slots=True)
class Whole:
    """The extent of a whole dimension; an emitter that needs a constant pads it and masks the padding."""

    size: Size

    def __str__(self) -> str:
        return f":{self.size}"


@dataclass(frozen=True, slots=True)
class Fixed:
    """A constant extent; no dead lanes."""

    size: int

    def __str__(self) -> str:
        return str(self.size)


Extent: TypeAlias = Block | Whole | Fixed


@dataclass(frozen=True, slots=True)
class TileType:
    """Element type and shape of a value; an empty shape is a scalar."""

    dtype: DType
    shape: tuple[Extent, ...] = ()

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Value:
    """The name of one SSA value; `hint` is the user's variable, for reading only."""

    number: int
    type: TileType
    hint: str = ""

    def __str__(self) -> str:
        return f"%{self.number}{'.' + self.hint if self.hint else ''}"
