"""`ShmBackend`: the collectives of the core in C, over a mesh of sockets for the rest."""

from __future__ import annotations

import os
import sys
import time
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, cast

from torchcomms.backend import Backend, Capabilities, Options, Store
from torchcomms.errors import BackendInvalid, CommsAborted, CommsClosed
from torchcomms.providers.shm import build, native
from torchcomms.providers.shm.collectives import NATIVE, Collectives
from torchcomms.providers.shm.express import ShmExpress
from torchcomms.providers.shm.heap import Heap
from torchcomms.providers.shm.queue import PARK, Queue
from torchcomms.providers.shm.rendezvous import Layout, agree, layout
from torchcomms.providers.shm.sockets import SocketShmBackend
from torchcomms.providers.shm.window import ShmWindow
from torchcomms.providers.tcp.engine import Engine
from torchcomms.providers.tcp.rendezvous import MACHINE, connect_all

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from torchcomms.providers.shm.native import Core, Group

SPIN = 50e-6  # seconds of looking before a waiter sleeps, where every rank has a processor
CROWDED = 2e-6  # seconds where not: others need the processor to come at all
PIECE = 64 << 20  # bytes


@dataclass(frozen=True, slots=True)
class ShmOptions(Options):
    """How the collectives run, and how much of a tensor stays untouched until its result is certain.

    `native`: True insists on the core in C, False uses the sockets, None takes what all ranks have; the environment
    variable TORCHCOMMS_SHM_NATIVE (0 or 1) says it where the option does not. `piece`: bytes that a reduction forms
    before it writes any of them back; a longer tensor is written back in such pieces. Rank 0's counts.
    """

    native: bool | None = None
    piece: int = PIECE


class ShmBackend(Collectives):
    """CPU tensors of ranks on one machine, over one segment of memory and, for messages, a mesh of sockets.

    Reductions leave a tensor as it was until its result (its piece's, see `ShmOptions`) is certain. Tensors from
    `empty` are reduced where they lie, with no copy at all, and hold anything after a failure.
    """

    express: ShmExpress

    def __init__(
        self, core: Core, group: Group, engine: Engine, rank: int, size: int, device: str, timeout: float, heap: int
    ) -> None:
        super().__init__(engine, rank, size, device, timeout)
        self.core, self.group, self.queue = core, group, Queue(group, engine, rank, size)
        self.heap = Heap(group, rank, heap)
        self.express = ShmExpress(group, self.queue, size, weakref.proxy(self))
        # Also at interpreter exit: a rank that ends in order says goodbye and is not taken for dead.
        self._finalizer = weakref.finalize(self, _release, engine, self.queue, group)
        _OPENED.add(self)

    @classmethod
    def capabilities(cls) -> Capabilities:
        """`reason` says where the core comes from, or why there is none."""
        if not (sys.platform == "linux" and hasattr(os, "memfd_create")):
            return Capabilities(usable=False, reason=f"needs Linux, this is {sys.platform}; use tcp")
        found = native.expected()
        if native.wanted(None) is False or found.core is None:
            why = found.how if found.core is None else f"{native.SWITCH}=0"
            return replace(SocketShmBackend.capabilities(), reason=f"over sockets: {why}")
        return Capabilities(native=NATIVE, windows=True, mismatch="inline", death_bound_ms=100.0, reason=found.how)

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
        core = _core(getattr(options, "native", None))
        generation = store.add(f"torchcomms/shm/{epoch}/{rank}", 1)
        connections = connect_all(store, f"torchcomms/shm/{epoch}.{generation}", rank, size, MACHINE, deadline)
        try:
            plan = layout(size, getattr(options, "piece", PIECE))
            agreed = agree(connections, rank, build.digest() if core else None, plan, deadline)
            group = None if core is None or agreed is None else _map(core, rank, size, *agreed)
        except BaseException:
            for connection in connections.values():
                connection.close()
            raise
        engine = Engine(rank, size, connections, cls.name)
        opened: Backend
        if core is None or group is None or agreed is None:
            opened = SocketShmBackend(engine, rank, size, device, timeout)
        else:
            opened = ShmBackend(core, group, engine, rank, size, device, timeout, agreed[0].heap)
        return cast(Self, opened)

    def abort(self, reason: str) -> None:
        failure = CommsAborted(f"aborted on this rank: {reason}", reason=reason)
        self.engine.end(failure)
        self.queue.fail(failure)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        self.queue.check()
        return self.heap.empty(tuple(shape), dtype)

    def window(self, tensor: Tensor) -> ShmWindow:
        """As `Backend.window`, of a tensor of `empty`; raises `UnsupportedTensor` everywhere if one lies elsewhere."""
        return ShmWindow(self, tensor)

    def close(self) -> None:
        self._finalizer()

    def sever(self) -> None:
        super().sever()
        self.queue.fail(CommsClosed("this shm backend was severed"))


def _core(choice: bool | None) -> Core | None:
    choice = native.wanted(choice)
    if choice is False:
        return None
    found = native.load()
    if found.core is None and choice:
        raise BackendInvalid(f"the core of shm is not to be had: {found.how}. Or pass native=None.", backend="shm")
    return found.core


def _map(core: Core, rank: int, size: int, plan: Layout, segment: int) -> Group:
    crowded = size > len(os.sched_getaffinity(0))
    patience = int((CROWDED if crowded else SPIN) * 1e9), int(PARK * 1e9)
    try:
        sizes = plan.slot, plan.chunk, plan.small, plan.piece, plan.heap
        return cast("Group", core.Comm(segment, rank, size, sizes, *patience))
    finally:
        os.close(segment)


def _release(engine: Engine, queue: Queue, group: Group) -> None:
    engine.close()
    queue.fail(engine.failure or CommsClosed("this shm backend is closed; open a new one"))
    group.close()


_OPENED: weakref.WeakSet[ShmBackend] = weakref.WeakSet()


def _abandon_all() -> None:
    """In a forked child: let go of the segment; the parent's counts for the group."""
    for backend in list(_OPENED):
        backend.queue.abandon(
            CommsClosed(f"this shm backend belongs to process {os.getppid()}: open one after the fork")
        )
        backend.group.abandon()


os.register_at_fork(after_in_child=_abandon_all)
