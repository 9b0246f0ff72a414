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
    from torchcomms.backend import P2P, Backend, Capabilities, Options, ReduceOp, Store, Ticket
    from torchcomms.comm import TorchComm, new_comm
    from torchcomms.discovery import backends, find
    from torchcomms.errors import (
        CollectiveMismatch,
        CommsAborted,
        CommsClosed,
        CommsError,
        CommsTimeout,
        PeerFailed,
    )
    from torchcomms.work import Work

__version__ = "0.1.0"

_HOMES = {
    "Backend": "torchcomms.backend",
    "Capabilities": "torchcomms.backend",
    "CollectiveMismatch": "torchcomms.errors",
    "CommsAborted": "torchcomms.errors",
    "CommsClosed": "torchcomms.errors",
    "CommsError": "torchcomms.errors",
    "CommsTimeout": "torchcomms.errors",
    "Options": "torchcomms.backend",
    "P2P": "torchcomms.backend",
    "PeerFailed": "torchcomms.errors",
    "ReduceOp": "torchcomms.backend",
    "Store": "torchcomms.backend",
    "Ticket": "torchcomms.backend",
    "TorchComm": "torchcomms.comm",
    "Work": "torchcomms.work",
    "backends": "torchcomms.discovery",
    "find": "torchcomms.discovery",
    "new_comm": "torchcomms.comm",
}

__all__ = [
    "Backend",
    "Capabilities",
    "CollectiveMismatch",
    "CommsAborted",
    "CommsClosed",
    "CommsError",
    "CommsTimeout",
    "Options",
    "P2P",
    "PeerFailed",
    "ReduceOp",
    "Store",
    "Ticket",
    "TorchComm",
    "Work",
    "backends",
    "find",
    "new_comm",
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
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchcomms' has no attribute {name!r}; it has {', '.join(__all__)}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
