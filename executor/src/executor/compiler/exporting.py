"""torch.export as this compiler uses it: which operations are decomposed, and into what."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from executor import kernels
from executor.compiler.duplicates import without_duplicates
from executor.errors import CompileError

aten = torch.ops.aten

# These have loops of their own, better than what torch would make of them.
_KEPT = (
    aten.linear.default, aten.matmul.default, aten.rms_norm.default, aten.silu.default, aten._safe_softmax.default,
    aten.select_scatter.default, aten.stack.default, aten.transpose.int, aten.chunk.default,
)  # fmt: skip


def export(name: str, model: nn.Module, args: tuple[Any, ...]) -> torch.export.ExportedProgram:
    """The functional graph of `model` called with `args`; CompileError with torch's own words if it refuses."""
    table: Any = torch.export.default_decompositions()
    for operation in _KEPT:
        table.pop(operation, None)
    for operation in [known for known in table if _provided(known)]:
        table.pop(operation)
    table[aten.scaled_dot_product_attention.default] = attention
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # torch's own use of its deprecated parts.
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            exported = torch.export.export(model, args, strict=False)
            decomposed: torch.export.ExportedProgram = exported.run_decompositions(table)
        without_duplicates(decomposed.graph)
        return decomposed
    except Exception as error:
        raise CompileError(f"torch.export refuses {name!r}: {error}") from error


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention in plain operations; rows that a mask bars wholly give zeros, as torch's do."""
    if dropout_p:
        raise ValueError(f"attention with dropout {dropout_p}: call model.eval() before compiling")
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (_repeated(tensor, groups) for tensor in (key, value))
    scores = torch.matmul(query, key.transpose(-2, -1)) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        rows, columns = (torch.arange(size, device=query.device) for size in scores.shape[-2:])
        attn_mask = columns <= rows.unsqueeze(-1)
    if attn_mask is None:
        return torch.matmul(torch.softmax(scores, -1), value)
    barring = attn_mask.dtype == torch.bool
    scores = torch.where(attn_mask, scores, float("-inf")) if barring else scores + attn_mask
    return torch.matmul(torch.ops.aten._safe_softmax.default(scores, -1), value)


def _repeated(tensor: Tensor, groups: int) -> Tensor:
    *batch, heads, length, width = tensor.shape
    return tensor.unsqueeze(-3).expand(*batch, heads, groups, length, width).reshape(*batch, -1, length, width)


def _provided(operation: Any) -> bool:
    """Whether a custom operation has a kernel, so that it stays one node."""
    name = str(operation.name()).split(".")[0]
    return not name.startswith(("aten::", "prim")) and kernels.provider(name.split("::")[0]) is not None
