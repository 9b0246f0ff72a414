"""How a reduction is split over stages so that it rounds once: what each stage applies, and in which dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from torchcomms.algorithms.reduction import check
from torchcomms.backend import ReduceOp

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDING = frozenset({"sum", "avg", "premul_sum", "product"})


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A reduction in stages: `widen` a rank's part, apply `stage` in any grouping of the ranks, then `narrow`."""

    op: ReduceOp
    stage: ReduceOp
    wide: torch.dtype

    def widen(self, part: Tensor, *, private: bool = False) -> Tensor:
        """What a rank puts into the first stage: a flat tensor of `wide`; `part` itself unless `private`."""
        if self.op.factor is not None:
            return part.to(self.wide) * self.op.factor
        return part.to(self.wide, copy=private)

    def narrow(self, total: Tensor, out: Tensor, ranks: int) -> None:
        """Write what the last stage gave to `out`, rounded once; `total` is used up."""
        out.copy_(total.div_(ranks) if self.op.kind == "avg" else total)


def accumulation(op: ReduceOp, dtype: torch.dtype) -> Accumulation | None:
    """How to split `op` over stages; None for integer averages, whose sum no stage could hold in the dtype.

    Raises `UnsupportedReduction` if `op` has no meaning for `dtype`.
    """
    check(op, dtype)
    if op.kind == "avg" and not (dtype.is_floating_point or dtype.is_complex):
        return None
    stage = ReduceOp.SUM if op.kind in ("avg", "premul_sum") else op
    return Accumulation(op, stage, _wide(dtype) if op.kind in _ROUNDING else dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype is torch.complex32:
        return torch.complex64
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype
