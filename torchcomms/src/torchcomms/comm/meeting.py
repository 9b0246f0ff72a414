"""Where the members of a group that is formed anew meet: at a store that the first of them hosts.

So recovery depends on no rank that may have died: every member can host, and which one does follows from the handles.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid as uuids
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from torch.distributed import TCPStore  # type: ignore[attr-defined, unused-ignore]  # not re-exported by its stubs

from torchcomms.bootstrap import Named
from torchcomms.errors import CommsTimeout, InvalidCall, name_ranks
from torchcomms.providers.tcp.rendezvous import local_address

if TYPE_CHECKING:
    from torchcomms.backend import Store


class Host:
    """A store of this process and the handle under which others find it: host, port and a word of its own."""

    def __init__(self, known: Store | None) -> None:
        """`known`: a store that the others reach too (None: MASTER_ADDR); the route to it tells this rank's address."""
        address = local_address(known or cast("Store", SimpleNamespace(host=os.environ.get("MASTER_ADDR"))))
        self.store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        self.handle = f"{address}|{self.store.port}|{uuids.uuid4().hex[:12]}"


def meet(host: Host, handles: Sequence[str], uuid: int, epoch: int, seconds: float) -> tuple[Store, int]:
    """The store of the new group and its epoch, when all have come: one more than the highest of any member."""
    deadline = time.monotonic() + seconds
    rank = handles.index(host.handle)
    digest = hashlib.sha256("\n".join(handles).encode()).hexdigest()[:16]
    store = Named(f"reconfigure/{uuid}/{digest}", _join(host, handles[0], seconds))
    store.set(f"epoch/{rank}", str(epoch))
    keys = [f"epoch/{member}" for member in range(len(handles))]
    missing = [member for member, key in enumerate(keys) if not _came(store, key, deadline)]
    if missing:
        raise CommsTimeout(f"{name_ranks(missing)} of {len(handles)} did not come to reconfigure", missing=missing)
    return store, 1 + max(int(store.get(key)) for key in keys)


def _join(host: Host, handle: str, seconds: float) -> Store:
    if handle == host.handle:
        return cast("Store", host.store)
    try:
        address, port, _ = handle.split("|")
        number = int(port)
    except ValueError as error:
        raise InvalidCall(f"{handle!r} is no init handle: pass what get_init_handle() of a member returned") from error
    patience = timedelta(seconds=seconds)
    try:
        return cast("Store", TCPStore(address, number, is_master=False, wait_for_workers=False, timeout=patience))
    except (RuntimeError, TimeoutError) as error:
        raise CommsTimeout(f"rank 0, which hosts the meeting at {handle}, does not answer", missing={0}) from error


def _came(store: Store, key: str, deadline: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=max(0.001, deadline - time.monotonic())))
    except (RuntimeError, TimeoutError):
        return False
    return True
