"""`GlooBackend`: CPU tensors over torch.distributed's gloo."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import torch

from torchcomms.backend import P2P, Capabilities, Options
from torchcomms.errors import CommsAborted
from torchcomms.providers.c10d.base import NOTICED_MS, C10dBackend
from torchcomms.providers.c10d.engine import GlooEngine
from torchcomms.providers.c10d.probe import why_no_gloo
from torchcomms.providers.inbox import Batch
from torchcomms.providers.tcp import TcpBackend

EARLY_LIMIT = 1 << 30  # bytes


@dataclass(frozen=True, slots=True)
class GlooOptions(Options):
    """`host`: the address of this rank that the others reach; None: the one from which the store is reached.

    `interface`: the network interface that gloo uses instead, as "eth0" or several as "eth0,eth1"; None: what
    GLOO_SOCKET_IFNAME says, which torch.distributed reads too.

    `early_limit` is the number of bytes that may lie here in messages whose receive is not posted yet, all peers
    together; beyond it the group fails with `EarlyOverflow`.
    """

    host: str | None = None
    interface: str | None = None
    early_limit: int = EARLY_LIMIT


class GlooTicket:
    """A batch in flight."""

    __slots__ = ("_batch", "_deadline", "_engine")

    def __init__(self, engine: GlooEngine, batch: Batch, timeout: float) -> None:
        self._engine, self._batch = engine, batch
        self._deadline = time.monotonic() + timeout

    def test(self) -> bool:
        return self._engine.test(self._batch)

    def wait(self) -> None:
        self._engine.wait(self._batch, self._deadline)

    def wait_host(self, deadline: float) -> None:
        self._engine.wait(self._batch, deadline)


class GlooBackend(C10dBackend):
    """CPU tensors of every dtype, as bytes over gloo's messages; every collective is derived.

    gloo's own collectives are left alone: they end the process when ranks pass different lengths, reduce in another
    order than that of the ranks, and refuse dtypes. One thread of this rank serves each peer until `close`.
    """

    name = "gloo"

    def __init__(self, engine: GlooEngine, control: TcpBackend, device: str, timeout: float) -> None:
        self.engine = engine
        self.rank, self.size, self.device, self.timeout = control.rank, control.size, device, timeout
        # Also at interpreter exit: a rank that ends in order says goodbye and is not taken for dead.
        self._finalizer = weakref.finalize(self, engine.close)

    @classmethod
    def capabilities(cls) -> Capabilities:
        reason = why_no_gloo()
        return Capabilities(death_bound_ms=NOTICED_MS, usable=not reason, reason=reason)

    @classmethod
    def _build(
        cls, control: TcpBackend, place: Any, host: str, device: str, deadline: float, options: Options | None
    ) -> Self:
        library: Any = torch.distributed.ProcessGroupGloo
        settings = library._Options()  # the only way to say where gloo listens, and that one thread is enough
        interfaces = getattr(options, "interface", None) or os.environ.get("GLOO_SOCKET_IFNAME", "")
        settings._devices = [
            library.create_device(interface=interface) for interface in interfaces.split(",") if interface
        ] or [library.create_device(hostname=host)]
        settings._threads = 1
        settings._timeout = timedelta(seconds=max(0.001, deadline - time.monotonic()))
        group = library(place, control.rank, control.size, settings)
        engine = GlooEngine(group, control, getattr(options, "early_limit", EARLY_LIMIT))
        return cls(engine, control, device, control.timeout)

    def post(self, batch: Sequence[P2P]) -> GlooTicket:
        return GlooTicket(self.engine, self.engine.post(batch), self.timeout)

    def lost(self) -> frozenset[int]:
        return self.engine.lost()

    def abort(self, reason: str) -> None:
        self.engine.end(CommsAborted(f"aborted on this rank: {reason}", reason=reason))

    def close(self) -> None:
        self._finalizer()

    def sever(self) -> None:
        """Drop every connection without a goodbye, as a killed process would. For tests of what the others notice."""
        self.engine.close(goodbye=False)
