"""How a CPU tensor is taken apart for pickling and put together again: its bytes travel out of band.

Values travel, not storages: two tensors that share memory arrive as two. Anything but a dense tensor in CPU memory is
left to torch's own pickling.
"""

from __future__ import annotations

import sys
from pickle import PickleBuffer
from typing import Any


def reduce_tensor(value: Any) -> Any:
    """The pieces of a dense CPU tensor or Parameter, or NotImplemented for anything else."""
    torch = sys.modules.get("torch")
    kind = type(value)
    if torch is None or (kind is not torch.Tensor and kind is not torch.nn.Parameter):
        return NotImplemented
    plain = value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
    if not plain or value.is_conj() or value.is_neg():
        return NotImplemented
    flat = value.detach().contiguous().reshape(-1)
    data = PickleBuffer(flat.view(torch.uint8).numpy())
    dtype = str(value.dtype).removeprefix("torch.")
    return rebuild, (data, dtype, tuple(value.shape), value.requires_grad, kind is torch.nn.Parameter)


def rebuild(data: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool, parameter: bool) -> Any:
    """The tensor over `data`, which it keeps alive and nobody else may write."""
    import numpy as np
    import torch

    flat = torch.from_numpy(data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8))
    tensor = flat.view(getattr(torch, dtype)).view(shape)
    if parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_() if requires_grad else tensor
