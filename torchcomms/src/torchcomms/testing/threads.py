"""Worlds whose ranks are threads of this process, over a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, Self, TypeVar, cast

from torch.distributed import HashStore  # type: ignore[attr-defined, unused-ignore]  # not re-exported by its stubs

from torchcomms.backend import Backend, Options, Store
from torchcomms.comm import TorchComm
from torchcomms.testing.world import TIMEOUT, OpenBackend, OpenCommunicator, shut

M = TypeVar("M")
T = TypeVar("T")


class Threads(Generic[M]):
    """One thread and one member for each rank."""

    def __init__(
        self,
        opener: Callable[..., M],
        size: int,
        store: Store | None = None,
        *,
        epoch: int = 0,
        ranks: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> None:
        self.size, self._open, self._timeout = size, opener, timeout
        self._store = cast(Store, HashStore()) if store is None else store
        self._present = range(size) if ranks is None else ranks
        self._threads = ThreadPoolExecutor(len(self._present), thread_name_prefix="rank")
        opening = [self._threads.submit(opener, rank, size, self._store, epoch, timeout) for rank in self._present]
        self.members = self._opened(opening)

    def _opened(self, opening: list[Future[M]]) -> list[M]:
        """All of them, or the first error, and then none stays open."""
        failed = [error for one in opening if (error := one.exception()) is not None]
        members = [one.result() for one in opening if one.exception() is None]
        if failed:
            for member in members:
                shut(member)
            self._threads.shutdown()
            raise failed[0]
        return members

    def open(self, *, epoch: int = 0, ranks: Sequence[int] | None = None, timeout: float | None = None) -> Threads[M]:
        """A second group of the same ranks over the same store."""
        return Threads(self._open, self.size, self._store, epoch=epoch, ranks=ranks, timeout=timeout)

    def run(self, function: Callable[[M], T]) -> list[T | BaseException]:
        def guarded(member: M) -> T | BaseException:
            try:
                return function(member)
            except Exception as error:
                return error

        return list(self._threads.map(guarded, self.members))

    def kill(self, rank: int) -> bool:
        """By the method `sever` of the rank's backend, where it has one."""
        member: Any = self.members[rank]
        sever = getattr(member.get_backend_impl() if isinstance(member, TorchComm) else member, "sever", None)
        if sever is not None:
            sever()
        return sever is not None

    def close(self) -> None:
        for member in self.members:
            shut(member)
        self._threads.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ThreadWorld(Threads[Backend]):
    """Backends, each opened by a thread of this process; `backend` is a class or the name of an installed one."""

    def __init__(
        self,
        backend: type[Backend] | str,
        size: int,
        *,
        device: str = "cpu",
        timeout: float = TIMEOUT,
        options: Options | None = None,
    ) -> None:
        super().__init__(OpenBackend(backend, device, timeout, options), size)

    @property
    def backends(self) -> list[Backend]:
        """The opened backends, by rank."""
        return self.members


class CommThreads(Threads[TorchComm]):
    """Communicators, each opened by a thread of this process."""

    def __init__(
        self,
        backend: type[Backend] | str,
        size: int,
        *,
        device: str = "cpu",
        timeout: float = TIMEOUT,
        options: Options | None = None,
    ) -> None:
        super().__init__(OpenCommunicator(OpenBackend(backend, device, timeout, options)), size)
