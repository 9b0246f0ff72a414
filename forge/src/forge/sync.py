"""Weights from the trainer to the generators: one flat buffer, moved in a message or by a collectives backend."""

from __future__ import annotations

import hashlib
import inspect
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from forge import providers
from forge.errors import ConfigError, ProviderError

if TYPE_CHECKING:
    from torchcomms.backend import Backend, Store

__all__ = ["GROUP", "MESSAGE", "WeightChannel", "checksum", "find_backend", "flatten", "host_store"]

GROUP = "torchcomms.backends.v1"
MESSAGE = "message"
NEEDED = (1, 0)
_BLOCK = 4096


class WeightChannel:
    """One end of the weight sync of a module, whose parameters it moves into `flat`, one after the other.

    With `backend` a name of the entry-point group, every end joins one group, the trainer as rank 0, and a sync is
    one broadcast of `flat`, straight from and into the parameters. Without one, `flat` travels in the call.
    """

    def __init__(self, module: nn.Module) -> None:
        self.flat = flatten(module)
        self._backend: Backend | None = None

    def join(self, backend: str, *, rank: int, size: int, host: str, port: int, timeout: float) -> None:
        """Meet the other ends at the trainer's store; blocks until all `size` are there, up to `timeout` seconds."""
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout))
        opened = find_backend(backend)
        self._backend = opened.open(rank=rank, size=size, store=cast("Store", store), device="cpu", timeout=timeout)

    def send(self) -> Tensor | None:
        """Broadcast the weights and return None, or return a copy of them for a message."""
        if self._backend is None:
            return self.flat.clone()
        self._backend.broadcast(self.flat, 0).wait()
        return None

    def receive(self, flat: Tensor | None) -> None:
        """Take part in the broadcast, or copy what a message brought."""
        if flat is not None:
            self.flat.copy_(flat)
        elif self._backend is not None:
            self._backend.broadcast(self.flat, 0).wait()
        else:
            raise ConfigError("neither a message nor a backend brings the weights; join a group first", key="sync")

    def close(self) -> None:
        """Leave the group; idempotent."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None


def host_store(host: str, timeout: float) -> TCPStore:
    """A store on a free port, in the trainer's process; whoever holds it keeps it alive."""
    return TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout))


def find_backend(name: str) -> type[Backend]:
    """The collectives backend of a name, checked to keep the contract and to work on this machine."""
    backend = providers.load(GROUP, name, install="pentad-forge[stack]")
    providers.check_interface(backend, name, NEEDED)
    try:
        inspect.signature(backend.open).bind(  # type: ignore[attr-defined]
            rank=0, size=1, store=None, device="cpu", timeout=1.0
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ProviderError(
            f"backend {name!r} cannot be opened as the contract says ({error}); install another release", name=name
        ) from error
    return cast("type[Backend]", backend)


@torch.no_grad()
def flatten(module: nn.Module) -> Tensor:
    """Move all parameters into one new buffer, in their order; the buffer [numel] and the parameters share memory."""
    parameters = list(module.parameters())
    dtypes = {parameter.dtype for parameter in parameters}
    if len(dtypes) != 1:
        raise ConfigError(f"parameters of {sorted(map(str, dtypes))} do not fit one buffer; use one dtype", key="model")
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    start = 0
    for parameter in parameters:
        parameter.data = flat[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    return flat


@torch.no_grad()
def checksum(flat: Tensor) -> str:
    """A digest of a buffer's bits: exact sums of its blocks and of every place within them, hashed.

    Two passes at memory speed, where hashing every byte would take longer than a sync. One changed weight always
    shows; so do weights moved to another place, but for contrived permutations.
    """
    bits = flat.contiguous().view(torch.int32) if flat.element_size() == 4 else flat.contiguous().view(torch.int16)
    whole = len(bits) // _BLOCK * _BLOCK
    blocks = bits[:whole].view(-1, _BLOCK)
    digest = hashlib.sha256(f"{flat.dtype} {flat.numel()}".encode())
    for sums in (blocks.sum(0, dtype=torch.int64), blocks.sum(1, dtype=torch.int64), bits[whole:]):
        digest.update(sums.numpy().tobytes())
    return digest.hexdigest()
