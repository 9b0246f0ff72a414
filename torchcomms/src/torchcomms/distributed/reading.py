"""Reading the arguments of torch.distributed's operations, which come in several forms, into one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.distributed import ReduceOp as TheirOp

from torchcomms.backend import ReduceOp
from torchcomms.distributed.reduction import translate
from torchcomms.errors import InvalidCall


def single(tensors: Tensor | Sequence[Tensor]) -> Tensor:
    """The one tensor of an argument that may be a list of one."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise InvalidCall(f"a list of {len(tensors)} tensors: an operation takes the tensor of one device, in a list")
    return tensors[0]


def reduction(options: object) -> ReduceOp:
    """The reduce operation of an options object, or the one given in its place."""
    return translate(TheirOp.SUM if options is None else getattr(options, "reduceOp", options))


def is_async(options: object) -> bool:
    """Whether the caller goes on before the operation is complete; what gives no word does."""
    return getattr(options, "asyncOp", True)


def given(options: object) -> tuple[object, ...]:
    """The options as arguments to pass on; none where the caller gave none."""
    return () if options is None else (options,)


def root_of(options: object) -> int:
    """The root of an options object, or the one given in its place."""
    return options if isinstance(options, int) else getattr(options, "rootRank", 0)
