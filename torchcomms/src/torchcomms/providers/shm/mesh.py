"""What both forms of the shm backend have in common: a mesh of AF_UNIX sockets for messages, deaths and goodbyes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from torchcomms.backend import P2P, Backend
from torchcomms.errors import CommsAborted
from torchcomms.providers.inbox import Batch
from torchcomms.providers.tcp.engine import Engine


class MeshTicket:
    """A batch of messages in flight."""

    __slots__ = ("_batch", "_deadline", "_engine")

    def __init__(self, engine: Engine, batch: Batch, deadline: float) -> None:
        self._engine, self._batch, self._deadline = engine, batch, deadline

    def test(self) -> bool:
        return self._engine.test(self._batch)

    def wait(self) -> None:
        self._engine.wait(self._batch, self._deadline)

    def wait_host(self, deadline: float) -> None:
        self._engine.wait(self._batch, deadline)


class Mesh(Backend):
    """Messages and endings; who derives from it closes by `close`."""

    name = "shm"

    def __init__(self, engine: Engine, rank: int, size: int, device: str, timeout: float) -> None:
        self.engine, self.rank, self.size, self.device, self.timeout = engine, rank, size, device, timeout

    def post(self, batch: Sequence[P2P]) -> MeshTicket:
        return MeshTicket(self.engine, self.engine.post(batch), time.monotonic() + self.timeout)

    def coalesce(self) -> AbstractContextManager[None]:
        return self.engine.coalesce()

    def lost(self) -> frozenset[int]:
        return self.engine.lost()

    def abort(self, reason: str) -> None:
        self.engine.end(CommsAborted(f"aborted on this rank: {reason}", reason=reason))

    def sever(self) -> None:
        """Drop every connection without a goodbye, as a killed process would. For tests of what the others notice."""
        self.engine.close(goodbye=False)
