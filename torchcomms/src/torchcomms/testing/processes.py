"""Worlds whose ranks are processes: forked by a server that has imported torch once, killed by SIGKILL."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any, Generic, Self, TypeVar

from torch.distributed import TCPStore  # type: ignore[attr-defined, unused-ignore]  # not re-exported by its stubs

from torchcomms.backend import Backend, Options
from torchcomms.comm import TorchComm
from torchcomms.testing.rank import serve
from torchcomms.testing.world import TIMEOUT, OpenBackend, OpenCommunicator

M = TypeVar("M")
T = TypeVar("T")

PATIENCE = 120.0  # seconds that one call on all ranks may take; then the ranks that are late are killed
HOST = "127.0.0.1"
# The command too: each rank runs the main script again, down to its `if __name__ == "__main__"`.
PRELOADED = ["torchcomms.testing", "torchcomms.comm", "torchcomms.cli"]


class RankEnded(ConnectionError):
    """The process of a rank has ended, by `exitcode` (negative: a signal)."""

    def __init__(self, message: str, *, exitcode: int | None = None) -> None:
        super().__init__(message)
        self.exitcode = exitcode


class Rank:
    """One process and the pipe to it."""

    def __init__(self, opener: Callable[..., Any], rank: int, size: int, port: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.number = rank
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, opener, rank, size, HOST, port)
        self.process = context.Process(target=serve, args=arguments, name=f"rank {rank}", daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, *request: object) -> BaseException | None:
        """Send a request; what went wrong, if it cannot be sent."""
        try:
            self.pipe.send_bytes(pickle.dumps(request))
        except OSError:
            return self.ended()
        except Exception as error:  # a function that does not pickle
            return TypeError(f"{error}: pass a function of a module, its arguments bound by functools.partial")
        return None

    def answer(self) -> Any:
        """The answer that is there."""
        try:
            return pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            return self.ended()

    def ended(self) -> RankEnded:
        """What became of the process."""
        self.process.join(PATIENCE)
        code = self.process.exitcode
        return RankEnded(f"rank {self.number} has ended, exit code {code}", exitcode=code)

    def end(self) -> None:
        """Release everything."""
        self.process.kill()
        self.process.join(PATIENCE)
        self.process.close()
        self.pipe.close()


class Processes(Generic[M]):
    """One process and one member for each rank, over a TCPStore of this process."""

    def __init__(self, opener: Callable[..., M], size: int) -> None:
        self.size, self._opened = size, 0
        self._store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self._ranks = [Rank(opener, rank, size, self._store.port) for rank in range(size)]
        try:
            self.group = self._open(0, None, None)
        except BaseException:
            self._end()
            raise

    def _open(self, epoch: int, ranks: Sequence[int] | None, timeout: float | None) -> int:
        """The number of a new group; if one rank cannot open it the others close it again."""
        group, self._opened = self._opened, self._opened + 1
        failed = [one for one in self.ask("open", group, epoch, timeout, ranks=ranks) if isinstance(one, BaseException)]
        if failed:
            self.ask("close", group)
            raise failed[0]
        return group

    def open(self, *, epoch: int = 0, ranks: Sequence[int] | None = None, timeout: float | None = None) -> Beside[M]:
        """A second group of the same ranks over the same store."""
        return Beside(self, self._open(epoch, ranks, timeout))

    def ask(self, *request: object, ranks: Sequence[int] | None = None) -> list[Any]:
        """Ask all ranks, or those named; their answers, or what became of them."""
        asked = [one for one in self._ranks if ranks is None or one.number in ranks]
        answers: dict[int, Any] = {}
        pending: dict[object, Rank] = {}
        for rank in asked:
            answers[rank.number] = rank.ask(*request)
            if answers[rank.number] is None:
                pending[rank.pipe] = rank
        until = time.monotonic() + PATIENCE
        while pending:
            ready = wait([rank.pipe for rank in pending.values()], max(0.0, until - time.monotonic()))
            for pipe in ready or [rank.pipe for rank in pending.values()]:
                rank = pending.pop(pipe)
                if not ready:
                    rank.process.kill()
                answers[rank.number] = rank.answer()
        return [answers[rank.number] for rank in asked]

    def run(self, function: Callable[[M], T]) -> list[T | BaseException]:
        return self.ask("run", self.group, function)

    def kill(self, rank: int) -> bool:
        """By SIGKILL."""
        self._ranks[rank].process.kill()
        return True

    @property
    def pids(self) -> list[int]:
        """The process of each rank."""
        return [rank.process.pid or -1 for rank in self._ranks]

    def close(self) -> None:
        self.ask("close", self.group)
        self._end()

    def _end(self) -> None:
        for rank in self._ranks:
            rank.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Beside(Generic[M]):
    """Another group of a world's processes."""

    def __init__(self, world: Processes[M], group: int) -> None:
        self.size, self._world, self._group = world.size, world, group

    def run(self, function: Callable[[M], T]) -> list[T | BaseException]:
        return self._world.ask("run", self._group, function)

    def kill(self, rank: int) -> bool:
        return self._world.kill(rank)

    def close(self) -> None:
        self._world.ask("close", self._group)


class ProcessWorld(Processes[Backend]):
    """Backends, each in a process of its own; `backend` is a class of a module, or the name of an installed one."""

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


class CommProcesses(Processes[TorchComm]):
    """Communicators, each in a process of its own."""

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
