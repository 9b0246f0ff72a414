"""Kernels from other packages, found by name, and the operation of forge that takes one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from torch import Tensor

from forge import providers
from forge.errors import ProviderError

if TYPE_CHECKING:
    from helium.contract import KernelCallable, KernelProvider

__all__ = ["LogProb", "find_kernel", "token_logprobs"]

LogProb = Callable[[Tensor, Tensor], Tensor]
"""`(logits[m, v], ids int64[m]) -> f32[m]`: the log softmax at the id; for example a helium kernel."""

_GROUP = "helium.kernels.v1"
_INTERFACE = (1, 0)


def find_kernel(name: str) -> KernelCallable:
    """The kernel `namespace::kernel` from the provider of that namespace; raises `ProviderError`.

    For example `Decoder(config, rms_norm=find_kernel("helium::rms_norm"))`, or
    `Engine(..., log_prob=find_kernel("helium::log_prob"))`.
    """
    namespace, separator, _ = name.partition("::")
    if not separator:
        raise ProviderError(f"{name!r} names no kernel; write it as namespace::kernel, e.g. 'helium::rms_norm'")
    provider = cast("KernelProvider", providers.load(_GROUP, namespace, install="pentad-forge[stack]"))
    providers.check_interface(provider, namespace, _INTERFACE)
    _check_find(provider, namespace)
    kernel = provider.find(name)
    if kernel is None:
        raise ProviderError(f"{namespace!r} provides no kernel {name!r}; check the spelling, or its release", name=name)
    providers.check_interface(kernel, name, _INTERFACE)
    return kernel


def _check_find(provider: object, namespace: str) -> None:
    """Once, here, rather than at a call in the middle of a run."""
    find = getattr(provider, "find", None)
    try:
        inspect.signature(find).bind("namespace::kernel")  # type: ignore[arg-type]  # a TypeError for what is no function
    except TypeError as error:
        raise ProviderError(
            f"the provider of {namespace!r} has no find(name): {error}; install another release of it", name=namespace
        ) from error


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
