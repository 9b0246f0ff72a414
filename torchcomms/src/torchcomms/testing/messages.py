"""Messages between the members of a world, on the device of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torchcomms.backend import P2P, Backend
from torchcomms.testing.samples import all_dtypes
from torchcomms.testing.world import soon

if TYPE_CHECKING:
    from torch import Tensor


def send(tensor: Tensor, peer: int, tag: int = 0) -> P2P:
    """A message to `peer`."""
    return P2P("send", tensor, peer, tag)


def recv(tensor: Tensor, peer: int, tag: int = 0) -> P2P:
    """A message from `peer`."""
    return P2P("recv", tensor, peer, tag)


def run(backend: Backend, *batch: P2P) -> None:
    """Post and wait."""
    backend.post(batch).wait_host(soon())


def move(tensor: Tensor, backend: Backend, *, tag: int = 0) -> Tensor:
    """Rank 0's tensor, as it arrives at rank 1; on the CPU before and after."""
    sent = tensor.to(backend.device)
    received = torch.empty_like(sent)
    run(backend, send(sent, 1, tag) if backend.rank == 0 else recv(received, 0, tag))
    return received.cpu()


def claimed_dtypes(backend: Backend) -> tuple[str, ...]:
    """The dtypes that the backend claims, of those that this torch has."""
    claimed = backend.capabilities().dtypes
    return tuple(name for name in sorted(all_dtypes()) if claimed is None or name in claimed)
