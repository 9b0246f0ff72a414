"""`TcpBackend`: the six methods over an engine."""

from __future__ import annotations

import socket
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from torchcomms.backend import P2P, Backend, Capabilities, Options, Store
from torchcomms.errors import CommsAborted
from torchcomms.providers.inbox import Allowance, Batch
from torchcomms.providers.tcp.engine import Engine
from torchcomms.providers.tcp.lifeline import is_remote, watch
from torchcomms.providers.tcp.rendezvous import connect_all, local_address


@dataclass(frozen=True, slots=True)
class TcpOptions(Options):
    """How a rank is reached, and its limits.

    `host` is the address at which the others reach this rank; None: the one from which the store is reached.
    `heartbeat` is in whole seconds: the ranks of a machine that is silent for three of them are dead; a rank that only
    computes is not. One second is quick, but two probes lost in a congested network then make a death. `early_limit` is
    how many bytes may lie here in messages whose receives are not posted yet, all peers together; beyond it every wait
    raises `EarlyOverflow`.
    """

    host: str | None = None
    heartbeat: int = 2
    early_limit: int = 1 << 30


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

    A message that no receive expects yet is kept here, so nothing deadlocks and its sender does not wait. The death of
    a peer is seen as the end of its connection, that of its machine as three heartbeats of silence, by every rank that
    waits or asks.
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
        asked = options if isinstance(options, TcpOptions) else TcpOptions()
        generation = store.add(f"torchcomms/tcp/{epoch}/{rank}", 1)
        host = asked.host or local_address(store)
        prefix = f"torchcomms/tcp/{epoch}.{generation}"
        connections = connect_all(store, prefix, rank, size, host, deadline)
        try:
            lifelines = _lifelines(store, prefix, rank, connections, host, asked.heartbeat, deadline)
        except BaseException:
            for connection in connections.values():
                connection.close()
            raise
        allowance = Allowance(asked.early_limit)
        return cls(
            Engine(rank, size, connections, lifelines=lifelines, allowance=allowance), rank, size, device, timeout
        )

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


def _lifelines(
    store: Store,
    prefix: str,
    rank: int,
    connections: Mapping[int, socket.socket],
    host: str,
    heartbeat: int,
    deadline: float,
) -> dict[int, socket.socket]:
    """One more connection to each peer on another machine."""
    remote = [peer for peer, connection in connections.items() if is_remote(connection)]
    lifelines = connect_all(store, f"{prefix}/lifeline", rank, 0, host, deadline, peers=remote)
    for lifeline in lifelines.values():
        watch(lifeline, heartbeat)
    return lifelines
