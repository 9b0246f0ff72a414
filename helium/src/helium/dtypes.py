"""What is known of each dtype: its torch name, size, category, and how two of them meet."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import torch

from helium.types import DType

Category: TypeAlias = Literal[0, 1, 2]
"""bool, integer, float: the order in which torch promotes across categories."""

TORCH: dict[DType, torch.dtype] = {name: getattr(torch, name) for name in get_args(DType)}
"""torch's dtype by name."""
NAMES: dict[torch.dtype, DType] = {dtype: name for name, dtype in TORCH.items()}
"""The inverse of `TORCH`."""
BYTES: dict[DType, int] = {name: dtype.itemsize for name, dtype in TORCH.items()}
"""Size of an element in bytes."""
HALVES = frozenset({"float16", "bfloat16"})
"""Dtypes whose arithmetic is done in float32."""


def category(dtype: DType) -> Category:
    """The promotion category of `dtype`."""
    if is_float(dtype):
        return 2
    return 0 if dtype == "bool" else 1


def is_float(dtype: DType) -> bool:
    """Whether `dtype` is a floating point type."""
    return TORCH[dtype].is_floating_point


def promote(left: DType, right: DType) -> DType:
    """The dtype in which torch combines two tensors."""
    return NAMES[torch.promote_types(TORCH[left], TORCH[right])]


def compute(dtype: DType) -> DType:
    """The dtype in which arithmetic on `dtype` is done: float32 for halves."""
    return "float32" if dtype in HALVES else dtype
