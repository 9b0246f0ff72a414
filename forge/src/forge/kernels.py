"""Kernels from other packages, found by name, and the operations of forge that take one."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

__all__ = ["LogProb", "token_logprobs"]

LogProb = Callable[[Tensor, Tensor], Tensor]
"""`(logits[m, v], ids int64[m]) -> f32[m]`: the log softmax at the id; for example a helium kernel."""


def token_logprobs(
    logits: Tensor, ids: Tensor, temperature: float | Tensor = 1.0, *, kernel: LogProb | None = None
) -> Tensor:
    """Log-probability f32[...] of `ids` int64[...] under softmax(`logits` [..., V] / `temperature`).

    `temperature` is a number or a tensor that broadcasts against `ids`. Generator and trainer both use this, at the
    same temperature, so that their log-probabilities are of the same distribution.
    """
    if isinstance(temperature, Tensor):
        logits = logits / temperature.unsqueeze(-1)
    elif temperature != 1.0:
        logits = logits / temperature
    if kernel is not None:
        return kernel(logits.reshape(-1, logits.shape[-1]), ids.reshape(-1)).view(ids.shape)
    return logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
