"""Packing tensors of any layout into dense buffers, and writing results back into only their own elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchcomms.errors import InvalidCall, UnsupportedTensor


def check_tensor(tensor: Tensor, device: torch.device) -> None:
    """Raise `UnsupportedTensor` unless the communicator of `device` can move this tensor."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UnsupportedTensor(
            f"a tensor of layout {tensor.layout} and dtype {tensor.dtype} cannot be moved: densify it"
        )
    if tensor.device.type != device.type:
        raise UnsupportedTensor(f"the tensor is on {tensor.device}, the communicator on {device}; move one of them")


def check_target(tensor: Tensor) -> None:
    """Raise `InvalidCall` if writing to the tensor would write one place twice."""
    if tensor.numel() and any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    ):
        raise InvalidCall(
            f"an expanded tensor (shape {tuple(tensor.shape)}, strides {tensor.stride()}) "
            "cannot take a result: several of its elements are one; pass a clone"
        )


def is_dense(tensor: Tensor) -> bool:
    """Whether the tensor's memory is its values in order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def dense(tensor: Tensor) -> Tensor:
    """The tensor itself, outside of autograd, if its memory is its values in order; else a packed copy."""
    plain = tensor.detach()
    return plain if is_dense(plain) else plain.resolve_conj().resolve_neg().contiguous()


def private(tensor: Tensor) -> Tensor:
    """A packed copy, always."""
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def blank(tensor: Tensor) -> Tensor:
    """The tensor itself if it is dense; else new memory to receive into and `unpack` from."""
    plain = tensor.detach()
    return plain if is_dense(plain) else torch.empty(plain.shape, dtype=plain.dtype, device=plain.device)


def unpack(targets: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
    """Write results back where they were received into other memory."""
    for target, buffer in zip(targets, buffers, strict=True):
        if buffer.data_ptr() != target.data_ptr():
            target.detach().copy_(buffer)
