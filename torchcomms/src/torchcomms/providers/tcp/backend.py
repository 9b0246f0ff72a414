"""`TcpBackend`: the six methods over an engine."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from torchcomms.backend import P2P, Backend, Capabilities, Options, Store
from torchcomms.errors import CommsAborted
from torchcomms.providers.inbox import Batch
from torchcomms.providers.tcp.engine import Engine
from torchcomms.providers.tcp.rendezvous import connect_all, local_address


@dataclass(frozen=True, slots=True)
class TcpOptions(Options):
    """`host`: the address of this rank that the others reach; None: the one from which the store is reached."""

    host: str | None = None


class TcpTicket:
    """A batch in flight."""

    __slots__ = ("_backend", "_batch", "_deadline")

    def __init__(self, backend: TcpBackend, batch: Batch) -> None:
        self._backend, self._batch = backend, batch
        self._deadline = time.monotonic() + backend.timeout

    def test(self) -> bool:
        return self._backend.engine.test(self._batch)

    def wait(self) -> None:
        self._backend.engine.wait(self._batch, self._deadline)

    def wait_host(self, deadline: float) -> None:
        self._backend.engine.wait(self._batch, deadline)


class TcpBackend(Backend):
    """CPU tensors over TCP, IPv4 or IPv6.

    A message that no receive expects yet is buffered without limit, so nothing deadlocks; its sender does not wait. A
    peer's death is seen as the end of its connection, by every rank that waits or asks.
    """

    name = "tcp"

    def __init__(self, engine: Engine, rank: int, size: int, device: str, timeout: float) -> None:
        self.engine, self.rank, self.size, self.device, self.timeout = engine, rank, size, device, timeout
        # Also at interpreter exit: a rank that ends in order says goodbye and is not taken for dead.
        self._finalizer = weakref.finalize(self, engine.close)

    @classmethod
    def capabilities(cls) -> Capabilities:
        # Measured by benchmarks/bench_death.py: about a third of this at worst, with four ranks on two busy cores.
        return Capabilities(death_bound_ms=250.0)

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
        deadline = time.monotonic() + timeout
        generation = store.add(f"torchcomms/tcp/{epoch}/{rank}", 1)
        host = getattr(options, "host", None) or local_address(store)
        prefix = f"torchcomms/tcp/{epoch}.{generation}"
        connections = connect_all(store, prefix, rank, size, host, deadline)
        return cls(Engine(rank, size, connections), rank, size, device, timeout)

    def post(self, batch: Sequence[P2P]) -> TcpTicket:
        return TcpTicket(self, self.engine.post(batch))

    def coalesce(self) -> AbstractContextManager[None]:
        return self.engine.coalesce()

    def lost(self) -> frozenset[int]:
        return self.engine.lost()

    def abort(self, reason: str) -> None:
        self.engine.end(CommsAborted(f"aborted on this rank: {reason}", reason=reason))

    def close(self) -> None:
        self._finalizer()

    def sever(self) -> None:
        """Drop every connection without a goodbye, as a killed process would. For tests of what the others notice."""
        self.engine.close(goodbye=False)
