"""torch.distributed's reduce operations in this package's words."""

from __future__ import annotations

from torch import Tensor
from torch.distributed import ReduceOp as TheirOp

from torchcomms.backend import ReduceOp
from torchcomms.errors import InvalidCall

_SAME = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
_OURS: dict[object, ReduceOp] = {getattr(TheirOp, name): getattr(ReduceOp, name) for name in _SAME}


def translate(op: object) -> ReduceOp:
    """The same reduction; `op` is a ReduceOp of torch.distributed or its kind."""
    kind = getattr(op, "op", op)
    ours = _OURS.get(kind)
    return _scaled(op) if ours is None else ours


def _scaled(op: object) -> ReduceOp:
    if getattr(op, "op", op) != TheirOp.PREMUL_SUM:
        raise InvalidCall(f"reduce operation {op!r} is unknown; use one of {', '.join(_SAME)} or a PREMUL_SUM")
    # Its state, made for pickling, is the only place where torch shows the factor.
    state: tuple[object, float | Tensor] = op.__getstate__()  # type: ignore[assignment]
    return ReduceOp.PREMUL_SUM(float(state[1]))
