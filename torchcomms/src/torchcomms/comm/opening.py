"""Opening a communicator."""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta

import torch

from torchcomms import tuning
from torchcomms.backend import Options, Store
from torchcomms.bootstrap import Named, meeting_place, plain
from torchcomms.comm.options import DEFAULT_TIMEOUT, CommOptions, Hints
from torchcomms.comm.torchcomm import TorchComm
from torchcomms.discovery import find
from torchcomms.errors import InvalidCall
from torchcomms.hooks.recorder import record_if_asked

# Communicators of this process by store, name and rank: two live ones under one name would take each other's messages.
_NAMES: weakref.WeakValueDictionary[tuple[int, str, int], TorchComm] = weakref.WeakValueDictionary()
_TAKING = threading.Lock()


def new_comm(
    backend: str,
    device: torch.device | str,
    name: str,
    abort_process_on_timeout_or_error: bool | None = None,
    timeout: timedelta | None = None,
    high_priority_stream: bool | None = None,
    store: Store | None = None,
    enable_reconfigure: bool = False,
    hints: Hints | None = None,
    *,
    rank: int | None = None,
    size: int | None = None,
    options: Options | None = None,
    min_size: int = 1,
) -> TorchComm:
    """Open a communicator of all ranks; returns when all have come.

    Ranks that pass one `name` meet. Rank, size and meeting place come from the launcher's variables (see `bootstrap`)
    unless given. `timeout` bounds this call and, by default, every operation: 60 s. `options` are the backend's own.

    With `abort_process_on_timeout_or_error` an operation that fails or times out ends the process (SIGABRT) after the
    abort hooks have run; by default it raises. With `enable_reconfigure` the communicator opens without a group, and
    needs no rank and no size: `reconfigure` gives it one, of at least `min_size` ranks.
    """
    settings = CommOptions(
        bool(abort_process_on_timeout_or_error),
        timeout or DEFAULT_TIMEOUT,
        bool(high_priority_stream),
        store,
        enable_reconfigure,
        dict(hints or {}),
        min_size,
    )
    kind, device = find(backend), torch.device(device)
    if enable_reconfigure:
        named = None if store is None else Named(name, store)
        comm = TorchComm(None, device, name, settings, kind=kind, store=named, backend_options=options)
    else:
        rank, size, place = meeting_place(name, store, rank, size, settings.timeout)
        comm = TorchComm(None, device, name, settings, kind=kind, store=place, backend_options=options)
        _take(comm, plain(place), rank)
        seconds = settings.timeout.total_seconds()
        opened = kind.open(rank=rank, size=size, store=place, device=device.type, timeout=seconds, options=options)
        tuning.agree(opened, place)
        comm._adopt(opened)
    record_if_asked(comm)
    return comm


def _take(comm: TorchComm, store: object, rank: int) -> None:
    key = (id(store), comm.get_name(), rank)
    with _TAKING:
        other = _NAMES.get(key)
        if other is not None and not other.is_aborted() and other._closed is None:
            raise InvalidCall(
                f"rank {rank} of this process has a communicator {comm.get_name()!r} at this store already: "
                "finalize it first, or choose another name"
            )
        _NAMES[key] = comm
