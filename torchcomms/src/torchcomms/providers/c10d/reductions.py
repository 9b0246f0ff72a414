"""Which reductions a vendor's library does with the meaning that the contract gives them, and in which words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchcomms.backend import ReduceOp

_WHOLE = frozenset({torch.int8, torch.uint8, torch.int32, torch.int64})
_FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_WHOLE_KINDS = frozenset({"sum", "product", "min", "max"})
_LOGICAL = {"sum": "max", "max": "max", "bor": "max", "product": "min", "min": "min", "band": "min"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The reductions of floats that a library has; `exact`: floats are not left to it."""

    kinds: frozenset[str]
    exact: bool = False

    def says(self, op: ReduceOp, dtype: torch.dtype) -> bool:
        """Whether the library does it."""
        if dtype is torch.bool:
            return op.kind in _LOGICAL
        if dtype in _WHOLE:
            return op.kind in _WHOLE_KINDS
        return dtype in _FLOATING and op.kind in self.kinds and not self.exact


def readable(tensor: Tensor) -> Tensor:
    """The flat view of a tensor as the library reads it: bools are bytes of 0 and 1."""
    flat = tensor.detach().view(-1)
    return flat.view(torch.uint8) if flat.dtype is torch.bool else flat


def in_words_of_torch(op: ReduceOp, dtype: torch.dtype) -> Any:
    """The reduction as torch.distributed names it."""
    import torch.distributed as dist

    if op.kind == "premul_sum":
        # The one way that every torch from 2.11 on has to say it, whatever the library.
        return dist._make_nccl_premul_sum(op.factor)  # type: ignore
    kind = _LOGICAL[op.kind] if dtype is torch.bool else op.kind
    return getattr(dist.ReduceOp, kind.upper())
