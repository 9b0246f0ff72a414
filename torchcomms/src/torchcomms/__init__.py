"""Collectives between ranks on any hardware that do not hang and do not lie, over a published backend ABC.

Names load on first use and importing the package imports no torch: torch itself looks into a package of this name
while it is being imported.
"""

from __future__ import annotations

import importlib
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchcomms import hooks, objcol
    from torchcomms.backend import (
        P2P,
        Backend,
        Capabilities,
        Express,
        Options,
        RedOpType,
        ReduceOp,
        Store,
        Ticket,
        Window,
    )
    from torchcomms.comm import (
        BatchSendRecv,
        OpName,
        P2POp,
        P2POpType,
        PostHookArgs,
        PreHookArgs,
        RemovableHandle,
        TorchComm,
        TorchCommWinAccessType,
        TorchCommWindow,
        TorchCommWindowAttr,
        new_comm,
    )
    from torchcomms.comm.options import (
        AllGatherOptions,
        AllGatherPExecOptions,
        AllGatherPInitOptions,
        AllGatherSingleOptions,
        AllReduceOptions,
        AllToAllOptions,
        AllToAllSingleOptions,
        AllToAllvSingleOptions,
        BarrierOptions,
        BatchP2POptions,
        BroadcastOptions,
        CommOptions,
        GatherOptions,
        ReconfigureOptions,
        RecvOptions,
        ReduceOptions,
        ReduceScatterOptions,
        ReduceScatterSingleOptions,
        ScatterOptions,
        SendOptions,
    )
    from torchcomms.comm.singles import AllGatherPHandle
    from torchcomms.device_mesh import init_device_mesh
    from torchcomms.discovery import backends, find
    from torchcomms.errors import CollectiveMismatch, CommsAborted, CommsClosed, CommsError, CommsTimeout, PeerFailed
    from torchcomms.work import TorchWork, Work, WorkStatus

__version__ = "0.1.0"

_HOMES = {
    "AllGatherOptions": "torchcomms.comm.options",
    "AllGatherPExecOptions": "torchcomms.comm.options",
    "AllGatherPHandle": "torchcomms.comm.singles",
    "AllGatherPInitOptions": "torchcomms.comm.options",
    "AllGatherSingleOptions": "torchcomms.comm.options",
    "AllReduceOptions": "torchcomms.comm.options",
    "AllToAllOptions": "torchcomms.comm.options",
    "AllToAllSingleOptions": "torchcomms.comm.options",
    "AllToAllvSingleOptions": "torchcomms.comm.options",
    "Backend": "torchcomms.backend",
    "BarrierOptions": "torchcomms.comm.options",
    "BatchP2POptions": "torchcomms.comm.options",
    "BatchSendRecv": "torchcomms.comm",
    "BroadcastOptions": "torchcomms.comm.options",
    "Capabilities": "torchcomms.backend",
    "CollectiveMismatch": "torchcomms.errors",
    "CommOptions": "torchcomms.comm.options",
    "CommsAborted": "torchcomms.errors",
    "CommsClosed": "torchcomms.errors",
    "CommsError": "torchcomms.errors",
    "CommsTimeout": "torchcomms.errors",
    "Express": "torchcomms.backend",
    "GatherOptions": "torchcomms.comm.options",
    "OpName": "torchcomms.comm",
    "Options": "torchcomms.backend",
    "P2P": "torchcomms.backend",
    "P2POp": "torchcomms.comm",
    "P2POpType": "torchcomms.comm",
    "PeerFailed": "torchcomms.errors",
    "PostHookArgs": "torchcomms.comm",
    "PreHookArgs": "torchcomms.comm",
    "ReconfigureOptions": "torchcomms.comm.options",
    "RecvOptions": "torchcomms.comm.options",
    "RedOpType": "torchcomms.backend",
    "ReduceOp": "torchcomms.backend",
    "ReduceOptions": "torchcomms.comm.options",
    "ReduceScatterOptions": "torchcomms.comm.options",
    "ReduceScatterSingleOptions": "torchcomms.comm.options",
    "RemovableHandle": "torchcomms.comm",
    "ScatterOptions": "torchcomms.comm.options",
    "SendOptions": "torchcomms.comm.options",
    "Store": "torchcomms.backend",
    "Ticket": "torchcomms.backend",
    "TorchComm": "torchcomms.comm",
    "TorchCommWinAccessType": "torchcomms.comm",
    "TorchCommWindow": "torchcomms.comm",
    "TorchCommWindowAttr": "torchcomms.comm",
    "TorchWork": "torchcomms.work",
    "Window": "torchcomms.backend",
    "Work": "torchcomms.work",
    "WorkStatus": "torchcomms.work",
    "backends": "torchcomms.discovery",
    "find": "torchcomms.discovery",
    "init_device_mesh": "torchcomms.device_mesh",
    "new_comm": "torchcomms.comm",
}
_MODULES = frozenset({"hooks", "objcol"})

__all__ = [
    "AllGatherOptions",
    "AllGatherPExecOptions",
    "AllGatherPHandle",
    "AllGatherPInitOptions",
    "AllGatherSingleOptions",
    "AllReduceOptions",
    "AllToAllOptions",
    "AllToAllSingleOptions",
    "AllToAllvSingleOptions",
    "Backend",
    "BarrierOptions",
    "BatchP2POptions",
    "BatchSendRecv",
    "BroadcastOptions",
    "Capabilities",
    "CollectiveMismatch",
    "CommOptions",
    "CommsAborted",
    "CommsClosed",
    "CommsError",
    "CommsTimeout",
    "Express",
    "GatherOptions",
    "OpName",
    "Options",
    "P2P",
    "P2POp",
    "P2POpType",
    "PeerFailed",
    "PostHookArgs",
    "PreHookArgs",
    "ReconfigureOptions",
    "RecvOptions",
    "RedOpType",
    "ReduceOp",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ReduceScatterSingleOptions",
    "RemovableHandle",
    "ScatterOptions",
    "SendOptions",
    "Store",
    "Ticket",
    "TorchComm",
    "TorchCommWinAccessType",
    "TorchCommWindow",
    "TorchCommWindowAttr",
    "TorchWork",
    "Window",
    "Work",
    "WorkStatus",
    "backends",
    "find",
    "hooks",
    "init_device_mesh",
    "new_comm",
    "objcol",
]

# Other distributions that own a package of this name; files of both would be mixed in one folder.
_CLASHING = ("torchcomms",)


def _warn_of_clashes() -> None:
    for name in _CLASHING:
        try:
            clash = f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
        warnings.warn(
            f"{clash} and pentad-torchcomms both own the package 'torchcomms': uninstall both, then install one",
            stacklevel=3,
        )


_warn_of_clashes()


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return importlib.import_module(f"torchcomms.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchcomms' has no attribute {name!r}; it has {', '.join(__all__)}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
