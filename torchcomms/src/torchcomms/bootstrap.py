"""Who this rank is and where the group meets: from the arguments, or from the variables that every launcher sets.

Rank and size: the first pair that is set of `PAIRS`. The meeting place: MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cache
from typing import Any, cast

from torch.distributed import TCPStore  # type: ignore[attr-defined, unused-ignore]  # not re-exported by its stubs

from torchcomms.backend import Store
from torchcomms.errors import InvalidCall, NoRendezvous

# Ours; torchrun's and monarch's, which may run inside a job of the others; Open MPI's, MPICH's and PALS', Slurm's.
PAIRS = (
    ("TORCHCOMM_RANK", "TORCHCOMM_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
PLACE = ("MASTER_ADDR", "MASTER_PORT")
# torchrun's word for "the launcher hosts the store"; torch.distributed's env:// reads it too.
HOSTED = "TORCHELASTIC_USE_AGENT_STORE"


def meeting_place(
    name: str, store: Store | None, rank: int | None, size: int | None, timeout: timedelta
) -> tuple[int, int, Store]:
    """Rank, size and a store that only the communicator `name` uses."""
    variables = next((pair for pair in PAIRS if set(pair) <= os.environ.keys()), ("RANK", "WORLD_SIZE"))
    needed: tuple[str, ...] = () if rank is not None and size is not None else variables
    needed += () if store is not None else PLACE
    unset = tuple(variable for variable in needed if variable not in os.environ)
    if unset:
        raise NoRendezvous(
            f"{', '.join(unset)} not set in the environment: start the ranks with `torchcomms run`, "
            "or pass store=, rank= and size=",
            variables=unset,
        )
    rank = int(os.environ[variables[0]]) if rank is None else rank
    size = int(os.environ[variables[1]]) if size is None else size
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
        self.prefix, self.underlying_store = f"torchcomms/{name}/", store

    def clone(self) -> Named:
        """The same, by a connection of its own where the store has that: a wait holds up everything else on one."""
        clone = Named("", cloned(self.underlying_store))
        clone.prefix = self.prefix
        return clone

    def set(self, key: str, value: bytes | str) -> None:
        self.underlying_store.set(self.prefix + key, value)

    def get(self, key: str) -> bytes:
        return self.underlying_store.get(self.prefix + key)

    def add(self, key: str, amount: int) -> int:
        return self.underlying_store.add(self.prefix + key, amount)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.underlying_store.wait([self.prefix + key for key in keys], timeout)


def plain(store: Any) -> Any:
    """The store under all prefixes."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def cloned(store: Store) -> Store:
    """The store by another connection, where it can be cloned."""
    clone = getattr(store, "clone", None)
    return store if clone is None else cast(Store, clone())
