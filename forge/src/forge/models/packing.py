"""One matrix for q, k and v, and one for gate and up, sharing memory with the parameters they are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from forge.models.decoder import Decoder

__all__ = ["pack"]


def pack(decoder: Decoder) -> None:
    """Let the decoder run fused projections where gradients are off.

    The parameters become views of the packed matrices, so whatever writes them in place (an optimizer, a weight sync,
    `load_state_dict`) writes the packed ones too. Where something has given a parameter other memory since (`.to`,
    a flat buffer), packing again restores this; it costs nothing where nothing moved. Parameters that already lie
    one after the other, as in a flat buffer, are packed where they are.
    """
    for block in decoder.blocks:
        attention, mlp = block.self_attn, block.mlp
        attention.packed = _join((attention.q_proj, attention.k_proj, attention.v_proj))
        mlp.packed = _join((mlp.gate_proj, mlp.up_proj))


def _join(parts: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    weight = _adjacent([part.weight for part in parts])
    biases = [part.bias for part in parts if isinstance(part.bias, nn.Parameter)]
    return weight, _adjacent(biases) if biases else None


def _adjacent(parameters: Sequence[Tensor]) -> Tensor:
    """The parameters, concatenated on their first dimension, as one tensor over their own memory."""
    tensors = [parameter.detach() for parameter in parameters]
    if not _already(tensors):
        joined = torch.cat(tensors)
        for parameter, part in zip(parameters, torch.split(joined, [len(t) for t in tensors]), strict=True):
            parameter.data = part
        return joined
    first, rows = tensors[0], sum(len(tensor) for tensor in tensors)
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def _already(tensors: Sequence[Tensor]) -> bool:
    end = tensors[0].data_ptr()
    storage = tensors[0].untyped_storage().data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end or tensor.untyped_storage().data_ptr() != storage or not tensor.is_contiguous():
            return False
        end += tensor.nbytes
    return True
