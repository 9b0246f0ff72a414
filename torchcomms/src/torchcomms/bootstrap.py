"""Who this rank is and where the group meets: from the arguments, or from the variables that every launcher sets."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cache
from typing import cast

from torch.distributed import TCPStore  # type: ignore[attr-defined, unused-ignore]  # not re-exported by its stubs

from torchcomms.backend import Store
from torchcomms.errors import InvalidCall, NoRendezvous

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# torchrun's word for "the launcher hosts the store"; torch.distributed's env:// reads it too.
HOSTED = "TORCHELASTIC_USE_AGENT_STORE"


def meeting_place(
    name: str, store: Store | None, rank: int | None, size: int | None, timeout: timedelta
) -> tuple[int, int, Store]:
    """Rank, size and a store that only the communicator `name` uses."""
    needed: tuple[str, ...] = VARIABLES if store is None else VARIABLES[:2]
    if rank is not None and size is not None:
        needed = needed[2:]
    unset = tuple(variable for variable in needed if variable not in os.environ)
    if unset:
        raise NoRendezvous(
            f"{', '.join(unset)} not set in the environment: start the ranks with `torchcomms run`, "
            "or pass store=, rank= and size=",
            variables=unset,
        )
    rank = int(os.environ["RANK"]) if rank is None else rank
    size = int(os.environ["WORLD_SIZE"]) if size is None else size
    if not 0 <= rank < size:
        raise InvalidCall(f"rank {rank} is not in a group of {size}; ranks are 0 to size - 1")
    return rank, size, Named(name, environment_store(rank, timeout) if store is None else store)


def environment_store(rank: int, timeout: timedelta) -> Store:
    """The store at MASTER_ADDR:MASTER_PORT; rank 0 hosts it unless the launcher does."""
    hosting = rank == 0 and os.environ.get(HOSTED) != str(True)
    return _tcp_store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), hosting, timeout)


@cache
def _tcp_store(host: str, port: int, hosting: bool, timeout: timedelta) -> Store:
    # Kept for the life of the process: a second communicator must not meet at a server that the first is taking down.
    # Multi-tenant, so that init_process_group finds the same server in either order.
    store = TCPStore(host, port, is_master=hosting, wait_for_workers=False, multi_tenant=True, timeout=timeout)
    return cast(Store, store)


class Named:
    """A store of any kind with the communicator's name before every key."""

    def __init__(self, name: str, store: Store) -> None:
        self._prefix, self.underlying_store = f"torchcomms/{name}/", store

    def set(self, key: str, value: bytes | str) -> None:
        self.underlying_store.set(self._prefix + key, value)

    def get(self, key: str) -> bytes:
        return self.underlying_store.get(self._prefix + key)

    def add(self, key: str, amount: int) -> int:
        return self.underlying_store.add(self._prefix + key, amount)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.underlying_store.wait([self._prefix + key for key in keys], timeout)
