"""The inproc backend: ranks are threads of one process. Semantics as everywhere, and a death that tests can inject."""

from __future__ import annotations

import os
import threading
import time
import uuid
import weakref
from collections.abc import Sequence
from typing import Self

from torchcomms.backend import P2P, Backend, Capabilities, Options, Store
from torchcomms.errors import CommsAborted, CommsClosed, CommsError, CommsTimeout, NoRendezvous, name_ranks
from torchcomms.providers.inbox import Batch, Inbox, departure, outcome


class Hub:
    """What the ranks of one group share: an inbox for each ordered pair, and one condition over all of it."""

    def __init__(self, size: int) -> None:
        self.changed = threading.Condition()
        self.inboxes = {(source, target): Inbox() for source in range(size) for target in range(size)}
        self.joined: set[int] = set()
        self.lost: set[int] = set()
        self.left: set[int] = set()

    def join(self, rank: int, size: int, deadline: float) -> None:
        """Enter, and wait for the others."""
        with self.changed:
            self.joined.add(rank)
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: len(self.joined) == size, max(0.0, deadline - time.monotonic())):
                missing = set(range(size)) - self.joined
                raise CommsTimeout(f"{name_ranks(missing)} of {size} did not open the inproc group", missing=missing)

    def leave(self, rank: int, *, dead: bool) -> None:
        """Go, in order or by death; receives that only this rank could fill end."""
        with self.changed:
            if rank in self.lost or rank in self.left:
                return
            (self.lost if dead else self.left).add(rank)
            for (source, target), inbox in self.inboxes.items():
                if target == rank:
                    inbox.fail(CommsClosed("this inproc backend is closed"))
                elif source == rank and not dead:
                    inbox.fail(departure(rank))
            self.changed.notify_all()


# Hubs by the id that the ranks exchange through their store; each lives as long as a rank holds it.
_HUBS: weakref.WeakValueDictionary[str, Hub] = weakref.WeakValueDictionary()


def meet(store: Store, epoch: int, rank: int, size: int, deadline: float) -> Hub:
    """Find the group's hub through the store: the first rank to come makes it."""
    generation = store.add(f"torchcomms/inproc/{epoch}/{rank}", 1)
    key = f"torchcomms/inproc/{epoch}.{generation}"
    if store.add(f"{key}/first", 1) == 1:
        hub = Hub(size)
        identity = f"{os.getpid()}-{uuid.uuid4().hex}"
        _HUBS[identity] = hub
        store.set(f"{key}/hub", identity)
    else:
        identity = store.get(f"{key}/hub").decode()
        found = _HUBS.get(identity)
        if found is None:
            raise NoRendezvous(
                f"the inproc group was opened in process {identity.partition('-')[0]}, this is {os.getpid()}: "
                "its ranks are threads of one process; use tcp between processes"
            )
        hub = found
    hub.join(rank, size, deadline)
    return hub


class InprocTicket:
    """A batch in flight."""

    __slots__ = ("_backend", "_batch", "_deadline")

    def __init__(self, backend: InprocBackend, batch: Batch) -> None:
        self._backend, self._batch = backend, batch
        self._deadline = time.monotonic() + backend.timeout

    def test(self) -> bool:
        with self._backend.hub.changed:
            return self._backend.outcome(self._batch)

    def wait(self) -> None:
        self.wait_host(self._deadline)

    def wait_host(self, deadline: float) -> None:
        with self._backend.hub.changed:
            while not self._backend.outcome(self._batch):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    missing = self._batch.missing()
                    raise CommsTimeout(f"still waiting for {name_ranks(missing)} at the deadline", missing=missing)
                self._backend.hub.changed.wait(min(remaining, threading.TIMEOUT_MAX))


class InprocBackend(Backend):
    """Threads of one process; a send is copied at once, so it is complete when posted."""

    name = "inproc"

    def __init__(self, hub: Hub, rank: int, size: int, device: str, timeout: float) -> None:
        self.hub, self.rank, self.size, self.device, self.timeout = hub, rank, size, device, timeout
        self._failure: CommsError | None = None

    @classmethod
    def capabilities(cls) -> Capabilities:
        return Capabilities(death_bound_ms=0.0)

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
        hub = meet(store, epoch, rank, size, time.monotonic() + timeout)
        return cls(hub, rank, size, device, timeout)

    def post(self, batch: Sequence[P2P]) -> InprocTicket:
        with self.hub.changed:
            if self._failure is not None:
                raise self._failure
            started = Batch(batch, self.size)
            for message in started.messages:
                if not message.sending:
                    self.hub.inboxes[message.peer, self.rank].expect(message)
            for message in started.messages:
                if message.sending:
                    self.hub.inboxes[self.rank, message.peer].deliver(message)
            for peer in started.missing() & self.hub.left:
                started.fail(departure(peer))
            self.hub.changed.notify_all()
        return InprocTicket(self, started)

    def outcome(self, batch: Batch) -> bool:
        """Whether the batch is complete; raises its error or the group's. Call with the hub's condition held."""
        return outcome(batch, self._failure, self.hub.lost)

    def lost(self) -> frozenset[int]:
        with self.hub.changed:
            return frozenset(self.hub.lost)

    def abort(self, reason: str) -> None:
        self._end(CommsAborted(f"aborted on this rank: {reason}", reason=reason))

    def close(self) -> None:
        self._end(CommsClosed("this inproc backend is closed; open a new one"))
        self.hub.leave(self.rank, dead=False)

    def sever(self) -> None:
        """Die as a killed process would: without a word. For tests of what the others notice."""
        self._end(CommsClosed("this inproc backend was severed"))
        self.hub.leave(self.rank, dead=True)

    def _end(self, failure: CommsError) -> None:
        with self.hub.changed:
            self._failure = failure
            self.hub.changed.notify_all()
