"""Worlds: opened backends, one for each rank, and a way to run a function on all of them at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar, cast

from torch.distributed import HashStore  # type: ignore[attr-defined, unused-ignore]  # not re-exported by its stubs

from torchcomms.backend import Backend, Options, Store

T = TypeVar("T")


class World(Protocol):
    """What the kit needs of a group under test."""

    size: int
    backends: list[Backend]

    def run(self, function: Callable[[Backend], T]) -> list[T | BaseException]:
        """Call `function` with every rank's backend at the same time; results, or what was raised, by rank."""

    def kill(self, rank: int) -> bool:
        """End one rank as a crash would; False if this world cannot."""

    def close(self) -> None:
        """Close all backends."""


class ThreadWorld:
    """Ranks as threads of this process, over a store in memory.

    `kill` calls the backend's method `sever` where it has one.
    """

    def __init__(
        self,
        backend: type[Backend],
        size: int,
        *,
        device: str = "cpu",
        timeout: float = 20.0,
        options: Options | None = None,
    ) -> None:
        self.size = size
        store = cast(Store, HashStore())
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="rank")

        def start(rank: int) -> Backend:
            return backend.open(rank=rank, size=size, store=store, device=device, timeout=timeout, options=options)

        self.backends = list(self._threads.map(start, range(size)))

    def run(self, function: Callable[[Backend], T]) -> list[T | BaseException]:
        def guarded(backend: Backend) -> T | BaseException:
            try:
                return function(backend)
            except Exception as error:
                return error

        return list(self._threads.map(guarded, self.backends))

    def kill(self, rank: int) -> bool:
        sever = getattr(self.backends[rank], "sever", None)
        if sever is not None:
            sever()
        return sever is not None

    def close(self) -> None:
        for backend in self.backends:
            backend.close()
        self._threads.shutdown()


def soon(seconds: float = 10.0) -> float:
    """A deadline for what should happen at once."""
    return time.monotonic() + seconds


def results(world: World, function: Callable[[Backend], T]) -> list[T]:
    """Run on all ranks; the first error of any rank is raised."""
    found: list[T] = []
    for outcome in world.run(function):
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found


def in_background(function: Callable[[], None]) -> threading.Thread:
    """Start a daemon thread."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread
