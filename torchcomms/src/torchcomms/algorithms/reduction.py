"""Local reduction of several ranks' parts into one: which reductions a dtype has, and how they round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcomms.algorithms.ghost import Ghost
from torchcomms.backend import ReduceOp
from torchcomms.errors import UnsupportedReduction

Function = Callable[..., Any]

TORCH: dict[str, Function] = {
    "sum": torch.add,
    "avg": torch.add,
    "premul_sum": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}
# torch has no arithmetic for these three; numpy has, on the same memory.
NUMPY: dict[str, Function] = {
    "sum": np.add,
    "avg": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
LOGICAL = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}) | UNSIGNED
_HALVES = frozenset({torch.float16, torch.bfloat16})
_FLOATS = frozenset({torch.float32, torch.float64}) | _HALVES
FLOAT8 = frozenset(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if hasattr(torch, name)
)
_COMPLEX = frozenset({torch.complex32, torch.complex64, torch.complex128})
_BITWISE = frozenset({"band", "bor", "bxor"})
_ARITHMETIC = frozenset({"sum", "avg", "premul_sum", "product"})
ORDER = frozenset({"min", "max"})


def reductions(dtype: torch.dtype) -> frozenset[str]:
    """The kinds of reduction that have a meaning for `dtype`; empty where elements can only be moved."""
    if dtype is torch.bool:
        return frozenset(LOGICAL) | _BITWISE
    if dtype in INTEGERS:
        return (_ARITHMETIC | ORDER | _BITWISE) - {"premul_sum"}
    if dtype in _FLOATS or dtype in FLOAT8:
        return _ARITHMETIC | ORDER
    return _ARITHMETIC if dtype in _COMPLEX else frozenset()


def check(op: ReduceOp, dtype: torch.dtype) -> None:
    """Raise `UnsupportedReduction` unless `op` has a meaning for `dtype`."""
    able = reductions(dtype)
    if op.kind not in able:
        choice = f"choose one of {', '.join(sorted(able))}" if able else "convert the tensor first"
        raise UnsupportedReduction(f"{op.kind} has no meaning for {dtype}: {choice}", op=op.kind, dtype=str(dtype))


def fold(op: ReduceOp, parts: Sequence[Tensor], out: Tensor) -> None:
    """Reduce `parts` (flat, one for each rank, in the order of ranks) into `out`, which may be one of them.

    The order of operations depends on nothing but the ranks, so results repeat bit for bit. Parts are left as they are
    but for `out`.
    """
    dtype, kind = out.dtype, op.kind
    if isinstance(out, Ghost):
        out.meter.reduced((len(parts) - 1) * out.nbytes)
        return
    if dtype is torch.bool:
        _apply(TORCH[LOGICAL.get(kind, kind)], parts, out)
    elif dtype in UNSIGNED:
        _fold_unsigned(kind, parts, out)
    elif kind == "avg" and dtype in INTEGERS:
        total = torch.stack([part.to(torch.int64) for part in parts]).sum(0)
        out.copy_(torch.div(total, len(parts), rounding_mode="trunc"))
    elif _is_exact(kind, dtype, len(parts)):
        _apply(TORCH[kind], parts, out)
    else:
        out.copy_(_accumulate(op, parts))
    if kind == "avg" and dtype in (torch.float32, torch.float64) and len(parts) > 1:
        out.div_(len(parts))


def _is_exact(kind: str, dtype: torch.dtype, count: int) -> bool:
    """Whether the dtype's own arithmetic rounds no more often than the documented rule."""
    if kind == "premul_sum" or dtype in FLOAT8 or dtype in _COMPLEX:
        return False
    # Two half values added by torch are added in float32 and rounded once.
    return dtype not in _HALVES or kind in ORDER or (count == 2 and kind in ("sum", "product"))


def _accumulate(op: ReduceOp, parts: Sequence[Tensor]) -> Tensor:
    dtype = wide(parts[0].dtype)
    total = torch.empty_like(parts[0], dtype=dtype).copy_(parts[0])
    if op.factor is not None:
        total.mul_(op.factor)
    for part in parts[1:]:
        value = part.to(dtype)
        TORCH[op.kind](total, value if op.factor is None else value * op.factor, out=total)
    return total.div_(len(parts)) if op.kind == "avg" else total


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums and products of `dtype` are formed."""
    if dtype in _HALVES or dtype in FLOAT8:
        return torch.float32
    return torch.complex64 if dtype is torch.complex32 else dtype


def _apply(function: Function, parts: Sequence[Tensor], out: Tensor) -> None:
    if len(parts) == 1:
        if parts[0].data_ptr() != out.data_ptr():
            out.copy_(parts[0])
        return
    # Elementwise, so `out` may be one of the first two; a later part must not be overwritten before its turn.
    clash = any(part.data_ptr() == out.data_ptr() for part in parts[2:])
    total = torch.empty_like(out) if clash else out
    function(parts[0], parts[1], out=total)
    for part in parts[2:]:
        function(total, part, out=total)
    if clash:
        out.copy_(total)


def _fold_unsigned(kind: str, parts: Sequence[Tensor], out: Tensor) -> None:
    arrays = [part.numpy() for part in parts]
    if kind == "avg":
        total = reduce(np.add, [array.astype(np.uint64) for array in arrays])
        out.numpy()[...] = (total // np.uint64(len(parts))).astype(out.numpy().dtype)
    else:
        out.numpy()[...] = reduce(NUMPY[kind], arrays)
