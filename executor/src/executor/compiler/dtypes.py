"""Element types: those that this compiler has loops for, and torch's promotion between them."""

from __future__ import annotations

import torch

from executor.errors import UnsupportedError

NAMES = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float32: "float32",
}


def name_of(dtype: torch.dtype, source: str) -> str:
    """The name of a dtype; UnsupportedError if there are no loops for it."""
    if dtype not in NAMES:
        cure = f"convert the model to one of {', '.join(NAMES.values())} before compiling (model.float())"
        raise UnsupportedError(f"dtype {str(dtype).removeprefix('torch.')}", source, cure)
    return NAMES[dtype]
