"""Devices of a group that torch moves: making their backends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from torchcomms.errors import InvalidCall

if TYPE_CHECKING:
    from torchcomms._register import Request


# Some classes are there or not by the build of torch.
_dist: Any = dist


def register(group: dist.ProcessGroup, backends: Mapping[str, str], request: Request, options: object) -> None:
    """Make the backends of torch for these devices, and register them with `group`."""
    for device, name in backends.items():
        store = _dist.PrefixStore(f"torchcomms/{device}/", request.store)
        kind, backend = _make(name, store, request, options)
        group._register_backend(torch.device(device), kind, backend)


def _make(name: str, store: object, request: Request, options: object) -> tuple[Any, Any]:
    kinds, who = _dist.ProcessGroup.BackendType, (store, request.group_rank, request.group_size)
    if name == "gloo":
        return kinds.GLOO, _dist.ProcessGroupGloo(*who, timeout=request.timeout)
    if name == "nccl":
        return kinds.NCCL, _dist.ProcessGroupNCCL(*who, _with_timeout(options, _dist.ProcessGroupNCCL, request.timeout))
    if name == "xccl":
        return kinds.XCCL, _dist.ProcessGroupXCCL(*who, _with_timeout(options, _dist.ProcessGroupXCCL, request.timeout))
    raise InvalidCall(f"backend {name!r} cannot stand beside torchcomms in one group: use gloo, nccl or xccl")


def _with_timeout(options: object, kind: Any, timeout: timedelta) -> Any:
    given = options if isinstance(options, kind.Options) else kind.Options()
    given._timeout = timeout
    return given
