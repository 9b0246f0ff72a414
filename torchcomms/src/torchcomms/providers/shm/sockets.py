"""The shm backend where there is no core: the derived schedules, over the sockets of the machine."""

from __future__ import annotations

import weakref
from typing import Self

from torchcomms.backend import Capabilities, Options, Store
from torchcomms.providers.shm.mesh import Mesh
from torchcomms.providers.tcp.engine import Engine


class SocketShmBackend(Mesh):
    """Opened by `ShmBackend.open` on all ranks if one of them has no core."""

    def __init__(self, engine: Engine, rank: int, size: int, device: str, timeout: float) -> None:
        super().__init__(engine, rank, size, device, timeout)
        self._finalizer = weakref.finalize(self, engine.close)

    @classmethod
    def capabilities(cls) -> Capabilities:
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
        from torchcomms.providers.shm.backend import ShmBackend, ShmOptions

        where = {"rank": rank, "size": size, "store": store, "device": device, "epoch": epoch, "timeout": timeout}
        opened = ShmBackend.open(**where, options=ShmOptions(native=False))  # type: ignore[arg-type]
        assert isinstance(opened, cls)
        return opened

    def close(self) -> None:
        self._finalizer()
