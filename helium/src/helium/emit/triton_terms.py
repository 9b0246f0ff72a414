"""Expressions of Triton text: what each elementwise operation of the IR is written as."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from helium.dtypes import is_float
from helium.types import DType, Extent, Fixed, ReduceOp

DTYPES: Final[dict[DType, str]] = {
    "bool": "tl.int1",
    **{name: f"tl.{name}" for name in ("int8", "uint8", "int16", "int32", "int64")},
    **{name: f"tl.{name}" for name in ("float16", "bfloat16", "float32", "float64")},
}
_SIGNS: Final = {"add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^"}
_RELATIONS: Final = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_NAME: Final = re.compile(r"[\w.]+")
ONE: Final = Fixed(1)


@dataclass(frozen=True, slots=True)
class Term:
    """An expression, and the shape that it has in Triton.

    The shape may be smaller than the value's: Triton broadcasts where two tiles meet, so that what the IR stretches
    need not be. It is aligned on the right with the value's.
    """

    text: str
    shape: tuple[Extent, ...] = ()
    literal: bool = False

    @property
    def atom(self) -> str:
        """The text, in parentheses unless it can stand anywhere."""
        return self.text if _stands_alone(self.text) else f"({self.text})"

    def expanded(self, rank: int) -> Term:
        """With leading dimensions of 1, so that it has `rank` of them; scalars meet tiles as they are."""
        missing = rank - len(self.shape)
        if not self.shape or not missing:
            return self
        index = ", ".join(["None"] * missing + [":"] * len(self.shape))
        return Term(f"{self.atom}[{index}]", (ONE,) * missing + self.shape)


def _stands_alone(text: str) -> bool:
    """Whether `text` is a name followed by nothing but calls and subscripts."""
    name, depth = _NAME.match(text), 0
    for character in text[name.end() :] if name else "+":
        if depth == 0 and character not in "([":
            return False
        depth += (character in "([") - (character in ")]")
    return True


def along(text: str, dim: int, rank: int) -> str:
    """A one-dimensional expression as dimension `dim` of `rank`."""
    index = ", ".join(":" if d == dim else "None" for d in range(rank))
    return text if rank == 1 else f"{Term(text).atom}[{index}]"


def literal(value: bool | int | float) -> str:
    """A number as Triton reads it."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def typed(term: Term, dtype: DType) -> Term:
    """`term` as a tensor of `dtype`: a literal alone would be taken for float32 or int32."""
    return replace(term, text=f"tl.full((), {term.text}, {DTYPES[dtype]})", literal=False) if term.literal else term


def met(terms: Sequence[Term]) -> tuple[Extent, ...]:
    """The shape of terms that meet elementwise."""
    rank = max(len(term.shape) for term in terms)
    padded = [(ONE,) * (rank - len(term.shape)) + term.shape for term in terms]
    return tuple(next((e for e in extents if e != ONE), ONE) for extents in zip(*padded, strict=True))


def cast(source: Term, before: DType, after: DType) -> str:
    """A conversion as torch does it."""
    if after == "bool":
        return f"{source.atom} != 0"
    if source.literal or not source.shape:
        return f"tl.cast({source.text}, {DTYPES[after]})"
    return f"{source.atom}.to({DTYPES[after]})"


def unary(op: str, source: Term, dtype: DType) -> tuple[str, str | None]:
    """The expression, and the helper that it needs."""
    if op == "neg":
        return f"-{source.atom}", None
    if op == "not":
        return (f"{source.atom} == 0" if dtype == "bool" else f"~{source.atom}"), None
    text = typed(source, dtype).text
    if op in ("tanh", "round"):
        return f"_{op}({text})", f"_{op}"
    return f"tl.{op}({text})", None


def binary(op: str, left: Term, right: Term, dtype: DType) -> tuple[str, str | None]:
    """The expression, and the helper that it needs."""
    if op in _SIGNS:
        return f"{left.atom} {_SIGNS[op]} {right.atom}", None
    if left.literal and right.literal:
        left = typed(left, dtype)
    if op in ("max", "min"):
        nan = ", propagate_nan=tl.PropagateNan.ALL" if is_float(dtype) else ""
        return f"tl.{op}imum({left.text}, {right.text}{nan})", None
    kind = "_float" if is_float(dtype) and op == "floordiv" else ""
    helper = {"floordiv": "_floor_divide", "mod": "_remainder", "pow": "_power"}[op] + kind
    return f"{helper}({typed(left, dtype).text}, {typed(right, dtype).text})", helper


def compare(op: str, left: Term, right: Term) -> str:
    """A comparison."""
    return f"{left.atom} {_RELATIONS[op]} {right.atom}"


def select(condition: Term, then: Term, otherwise: Term, dtype: DType) -> str:
    """A choice, lane by lane."""
    sides = [typed(side, dtype).text if dtype != "float32" else side.text for side in (then, otherwise)]
    return f"tl.where({condition.text}, {sides[0]}, {sides[1]})"


def reduction(op: ReduceOp, text: str, dim: int, dtype: DType) -> tuple[str, str | None]:
    """A fold along one dimension in the source's dtype, and the helper that it needs."""
    if op == "prod":
        return f"tl.reduce({text}, {dim}, _product)", "_product"
    if op != "sum" and is_float(dtype):
        helper = "_larger" if op == "max" else "_smaller"
        return f"tl.reduce({text}, {dim}, {helper})", helper
    if dtype == "bool":
        return f"tl.{op}({Term(text).atom}.to(tl.int32), axis={dim}) != 0", None
    widened = dtype in ("int8", "uint8", "int16")  # Triton folds them in int32
    return f"tl.{op}({text}, axis={dim})" + (f".to({DTYPES[dtype]})" if widened else ""), None


def identity(op: ReduceOp, dtype: DType) -> str:
    """What dead lanes are set to before a fold."""
    if op in ("sum", "prod"):
        return literal(float(op == "prod") if is_float(dtype) else int(op == "prod"))
    if is_float(dtype):
        return literal(-math.inf if op == "max" else math.inf)
    if dtype == "bool":
        return literal(op == "min")
    bits, signed = int(dtype.lstrip("uint")), dtype.startswith("int")
    lowest, highest = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return literal(lowest if op == "max" else highest)
