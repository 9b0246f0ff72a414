"""Reduction step by step: partial results that travel between ranks, with the meaning and the rounding of `fold`.

A partial result of half and float8 types is float32 and of complex32 complex64, rounded once at the end; of an integer
average it is the sum in 64 bits. `merge` takes the part of the earlier ranks first, so that NaNs and signed zeros too
depend on nothing but the order that an algorithm documents.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchcomms.algorithms.ghost import Ghost
from torchcomms.algorithms.messages import Group, copy
from torchcomms.algorithms.reduction import FLOAT8, INTEGERS, LOGICAL, NUMPY, ORDER, TORCH, UNSIGNED, wide
from torchcomms.algorithms.scratch import workspace
from torchcomms.backend import ReduceOp


def partial_dtype(op: ReduceOp, dtype: torch.dtype) -> torch.dtype:
    """The dtype of partial results."""
    if op.kind == "avg" and dtype in INTEGERS:
        return torch.uint64 if dtype in UNSIGNED else torch.int64
    # torch does not compare float8 numbers.
    return dtype if op.kind in ORDER and dtype not in FLOAT8 else wide(dtype)


def load(op: ReduceOp, data: Tensor, partial: Tensor) -> None:
    """Make `partial` (flat, of `partial_dtype`) this rank's own contribution; `data` stays as it is."""
    if isinstance(partial, Ghost):
        partial.meter.copied(partial.nbytes)
    elif data.dtype in UNSIGNED:
        np.copyto(partial.numpy(), data.numpy())
    else:
        partial.copy_(data)
        if op.factor is not None:
            partial.mul_(op.factor)


def stage(group: Group, data: Tensor, op: ReduceOp, *spares: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """This rank's loaded contribution, memory for the result, and spare partial results of the given lengths.

    The user's tensor is written at the very end only. Where partial results have its dtype, the first two are one.
    """
    count, wide_dtype = data.numel(), partial_dtype(op, data.dtype)
    apart = [] if wide_dtype == data.dtype else [(count, data.dtype)]
    partial, *rest = workspace(group, data, (count, wide_dtype), *((spare, wide_dtype) for spare in spares), *apart)
    load(op, data, partial)
    return (partial, rest.pop(), rest) if apart else (partial, partial, rest)


def merge(op: ReduceOp, first: Tensor, second: Tensor, out: Tensor) -> None:
    """Reduce two partial results, of which `first` has the earlier ranks, into `out`, which may be one of them."""
    if isinstance(out, Ghost):
        out.meter.reduced(out.nbytes)
    elif out.dtype in UNSIGNED:
        NUMPY[op.kind](first.numpy(), second.numpy(), out=out.numpy())
    else:
        kind = LOGICAL.get(op.kind, op.kind) if out.dtype is torch.bool else op.kind
        TORCH[kind](first, second, out=out)


def settle(op: ReduceOp, partial: Tensor, count: int, out: Tensor) -> None:
    """Turn the reduction over `count` ranks into the result, rounded once; `out` may be `partial`."""
    if isinstance(partial, Ghost):
        if partial is not out:
            partial.meter.copied(partial.nbytes)
        return
    if op.kind == "avg" and count > 1:
        _divide(partial, count, out.dtype)
    if out.dtype in UNSIGNED:
        np.copyto(out.numpy(), partial.numpy(), casting="unsafe")
    else:
        copy(out, partial)


def _divide(partial: Tensor, count: int, dtype: torch.dtype) -> None:
    if dtype in UNSIGNED:
        np.floor_divide(partial.numpy(), np.uint64(count), out=partial.numpy())
    elif dtype in INTEGERS:
        partial.div_(count, rounding_mode="trunc")
    else:
        partial.div_(count)
