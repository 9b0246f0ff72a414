"""What the backends over torch.distributed share: how they open, and the control channel beside the library.

The ranks meet over the tcp backend first. It names those that do not come, notices deaths, and carries what the
library cannot; the library's own group is then built under a name that only these ranks know.
"""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch

from torchcomms.backend import Backend, Options, Store
from torchcomms.bootstrap import Named
from torchcomms.errors import CommsError, CommsTimeout, InvalidCall, PeerFailed, name_ranks
from torchcomms.providers.tcp import TcpBackend, TcpOptions
from torchcomms.providers.tcp.rendezvous import local_address

NOTICED_MS = 250.0  # within which a death is noticed; measured for the control channel


class C10dBackend(Backend):
    """A group of a library that torch.distributed wraps."""

    @classmethod
    def open(
        cls,
        *,
        rank: int,
        size: int,
        store: Store,
        device: str,
        epoch: int = 0,
        timeout: float,
        options: Options | None = None,
    ) -> Self:
        capabilities = cls.capabilities()
        if not capabilities.usable:
            raise InvalidCall(f"the {cls.name} backend is not usable here: {capabilities.reason}")
        deadline = time.monotonic() + timeout
        host = getattr(options, "host", None) or local_address(store)
        control = TcpBackend.open(
            rank=rank,
            size=size,
            store=Named(cls.name, store),
            device="cpu",
            epoch=epoch,
            timeout=timeout,
            options=TcpOptions(host=host),
        )
        with _closed_on_failure(cls.name, control, deadline):
            place = _own_place(control, store, deadline)
            return cls._build(control, place, host, device, deadline, options)

    @classmethod
    @abstractmethod
    def _build(
        cls, control: TcpBackend, place: Any, host: str, device: str, deadline: float, options: Options | None
    ) -> Self:
        """Build the library's group, whose ranks meet at `place`, a store of torch's that is theirs alone.

        `host` is the address of this rank that the others reach.
        """


def _own_place(control: TcpBackend, store: Store, deadline: float) -> Any:
    """A store of torch's own kind under a fresh name that rank 0 tells the others: libraries take no other kind."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined, unused-ignore]  # not in its stubs
    from torch.distributed import Store as LibraryStore  # type: ignore[attr-defined, unused-ignore]

    plain: Any = store
    while hasattr(plain, "underlying_store"):
        plain = plain.underlying_store
    if not isinstance(plain, LibraryStore):
        raise InvalidCall(f"a store of {type(plain)} cannot be handed to torch's libraries: pass one of torch's stores")
    name = torch.frombuffer(bytearray(secrets.token_bytes(16)), dtype=torch.uint8)
    control.broadcast(name, 0, deadline=deadline).wait_host(deadline)
    return PrefixStore(f"torchcomms/{name.numpy().tobytes().hex()}", plain)


@contextmanager
def _closed_on_failure(name: str, control: TcpBackend, deadline: float) -> Iterator[None]:
    """Close the control channel if the block fails, and say what a failure of the library means."""
    try:
        yield
    except CommsError:
        control.close()
        raise
    except RuntimeError as error:  # torch's word for every failure of a library
        lost = control.lost()
        control.close()
        if lost:
            raise PeerFailed(f"{name_ranks(lost)} died while the {name} group was opened", ranks=lost) from error
        if time.monotonic() >= deadline:
            raise CommsTimeout(f"the {name} group was not connected in time: {error}") from error
        raise InvalidCall(f"the {name} group could not be built: {error}") from error
