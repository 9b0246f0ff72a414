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


def equal_parts(tensor: Tensor, count: int) -> list[Tensor]:
    """The tensor cut into `count` parts of one length in the order of its elements, as views."""
    if tensor.is_contiguous() and tensor.numel() % count == 0:
        return list(tensor.view(count, -1).unbind(0)) if tensor.numel() else [tensor.view(-1)] * count
    if tensor.dim() and tensor.shape[0] % count == 0:
        return list(tensor.chunk(count)) if tensor.shape[0] else [tensor] * count
    raise InvalidCall(
        f"a tensor of shape {tuple(tensor.shape)} cannot be cut into {count} equal parts, one for each rank: "
        "pad it, or use the operation that takes a list of tensors"
    )


def rows(tensor: Tensor, sizes: Sequence[int], count: int) -> list[Tensor]:
    """The tensor cut along its first dimension into `sizes`, or equally where none are given."""
    return list(tensor.split(list(sizes))) if sizes else equal_parts(tensor, count)
