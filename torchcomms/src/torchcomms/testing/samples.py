"""Tensors that the kits send, and what a reduction of them means, in plain numpy and torch.

Nothing here uses the algorithms under test.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import cache, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcomms.backend import ReduceOp

PREMUL = ReduceOp.PREMUL_SUM(0.5)
ARITHMETIC = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT)
ORDER = (ReduceOp.MIN, ReduceOp.MAX)
BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
OPS = (*ARITHMETIC, *ORDER, *BITWISE, PREMUL)
_NUMPY: dict[str, Any] = {
    "sum": np.add,
    "avg": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_LOGICAL = {"sum": "bor", "max": "bor", "product": "band", "min": "band"}
_PART_OF_A_BYTE = re.compile(r"u?int[1-7]|bits.*|q.*")


@cache
def all_dtypes() -> dict[str, torch.dtype]:
    """The dtypes of this torch whose elements can be viewed as whole bytes, by name."""
    members = [member for member in vars(torch).values() if isinstance(member, torch.dtype)]
    named = {str(dtype).removeprefix("torch."): dtype for dtype in members}
    with warnings.catch_warnings():
        # torch says once in a process that half complex numbers are experimental: here, where nobody minds.
        warnings.simplefilter("ignore")
        torch.empty(1, dtype=torch.complex32)
    return {name: dtype for name, dtype in named.items() if not _PART_OF_A_BYTE.fullmatch(name)}


def moved(seed: int, count: int, dtype: torch.dtype) -> Tensor:
    """Elements of any bytes that the dtype allows, to be moved and compared as bytes."""
    size = torch.empty(0, dtype=dtype).element_size()
    kinds = 2 if dtype is torch.bool else 251
    return ((torch.arange(count * size) * 7 + 13 * seed) % kinds).to(torch.uint8).view(dtype)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether two dense tensors hold the same bytes."""
    return one.dtype == other.dtype and torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    # torch refuses to view an empty tensor as another dtype if its stride is 0, as a result's of numpy is.
    return tensor.view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)


def numbers(rank: int, count: int, dtype: torch.dtype) -> Tensor:
    """Small numbers, different for each rank: sums and products of a few are exact in every dtype of 16 bits or more.

    Powers of two where the dtype has nothing else.
    """
    places = torch.arange(count) * (rank + 2) + rank
    if dtype is torch.bool:
        return places % 3 == 0
    if str(dtype) == "torch.float8_e8m0fnu":
        return (2.0 ** (places % 3)).to(dtype)
    return (places % 5 + (0 if dtype.is_complex else rank)).to(dtype)


def reductions(dtype: torch.dtype) -> tuple[ReduceOp, ...]:
    """The reductions that have a meaning for the dtype, as documented at `ReduceOp`."""
    if dtype is torch.bool:
        return (ReduceOp.SUM, ReduceOp.PRODUCT, *ORDER, *BITWISE)
    if dtype.is_complex:
        return (*ARITHMETIC, PREMUL)
    if not dtype.is_floating_point:
        return (*ARITHMETIC, *ORDER, *BITWISE)
    return () if "float4" in str(dtype) else (*ARITHMETIC, *ORDER, PREMUL)


def reduced(parts: Sequence[Tensor], op: ReduceOp) -> Tensor:
    """What the documentation of `ReduceOp` says the reduction of these parts is."""
    dtype = parts[0].dtype
    if dtype is torch.bool:
        kind = _LOGICAL.get(op.kind, op.kind)
        return torch.from_numpy(reduce(_NUMPY[kind], [part.numpy() for part in parts]))
    if dtype.is_floating_point or dtype.is_complex:
        return _of_fractions(parts, op).to(dtype)
    return _of_integers([part.numpy() for part in parts], op.kind)


def _of_integers(parts: Sequence[Any], kind: str) -> Tensor:
    narrow = parts[0].dtype
    wide = np.uint64 if narrow.kind == "u" else np.int64
    whole = reduce(_NUMPY[kind], [part.astype(wide) for part in parts])
    if kind == "avg":
        quotient = np.abs(whole) // wide(len(parts)) if narrow.kind == "i" else whole // wide(len(parts))
        whole = np.sign(whole) * quotient if narrow.kind == "i" else quotient
    return torch.from_numpy(whole.astype(narrow))


def _of_fractions(parts: Sequence[Tensor], op: ReduceOp) -> Tensor:
    """In the order of ranks, halves in float32."""
    dtype = parts[0].dtype
    wide = dtype if dtype.itemsize > 2 and dtype is not torch.complex32 else torch.float32
    wide = torch.complex64 if dtype is torch.complex32 else wide
    values = [part.to(wide) * (1.0 if op.factor is None else op.factor) for part in parts]
    if op.kind in ("min", "max"):
        return reduce(torch.minimum if op.kind == "min" else torch.maximum, values)
    total = reduce(torch.mul if op.kind == "product" else torch.add, values)
    return total / len(parts) if op.kind == "avg" else total


def agree(seen: Tensor, wanted: Tensor) -> bool:
    """Equal bits; but the last places of a quotient in float32 or wider may differ, and NaN equals NaN."""
    if same_bytes(seen, wanted):
        return True
    if seen.dtype != wanted.dtype or seen.shape != wanted.shape or not reductions(seen.dtype):
        return False
    if seen.dtype.is_complex or (seen.dtype.is_floating_point and seen.dtype.itemsize > 2):
        tolerance = 4 * torch.finfo(torch.complex64 if seen.dtype is torch.complex32 else seen.dtype).eps
        wide = torch.complex128 if seen.dtype.is_complex else torch.float64
        return torch.allclose(seen.to(wide), wanted.to(wide), rtol=tolerance, atol=0.0, equal_nan=True)
    nans = wanted.float().isnan() if seen.dtype.is_floating_point else torch.zeros(wanted.shape, dtype=torch.bool)
    return bool(nans.any()) and torch.equal(seen.float().isnan(), nans) and same_bytes(seen[~nans], wanted[~nans])
