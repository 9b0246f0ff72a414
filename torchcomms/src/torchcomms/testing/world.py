"""Worlds: a group under test, one member for each rank, and a way to run a function on all of them at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from torchcomms.backend import Backend, Options, Store
from torchcomms.discovery import find

if TYPE_CHECKING:
    from torchcomms.comm import TorchComm

T = TypeVar("T")
M_co = TypeVar("M_co", covariant=True)

TIMEOUT = 20.0  # seconds that an operation of a group under test may take


class World(Protocol[M_co]):
    """What the kits need of a group under test; its members are backends, or communicators.

    A world may also have `open(*, epoch=0, ranks=None, timeout=None) -> World`: a second group of the same ranks over
    the same store, beside this one; of `ranks` only, if given, while the others do not come. Checks of it are reported
    as not claimed where it is missing.
    """

    size: int

    def run(self, function: Callable[[M_co], T]) -> list[T | BaseException]:
        """Call `function` with every rank's member at the same time; results, or what was raised, by rank.

        The kits pass functions of modules, with arguments bound by `functools.partial`: they pickle.
        """

    def kill(self, rank: int) -> bool:
        """End one rank as a crash would, also while `run` is running; False if this world cannot."""

    def close(self) -> None:
        """Close all members."""


@dataclass(frozen=True, slots=True)
class OpenBackend:
    """How a rank comes to its backend: a class, or the name of an installed one."""

    backend: type[Backend] | str
    device: str = "cpu"
    timeout: float = TIMEOUT
    options: Options | None = None

    def __call__(self, rank: int, size: int, store: Store, epoch: int, timeout: float | None) -> Backend:
        """Open it."""
        kind = find(self.backend) if isinstance(self.backend, str) else self.backend
        return kind.open(
            rank=rank,
            size=size,
            store=store,
            device=self.device,
            epoch=epoch,
            timeout=timeout or self.timeout,
            options=self.options,
        )


@dataclass(frozen=True, slots=True)
class OpenCommunicator:
    """How a rank comes to its communicator over the backend that `backend` opens."""

    backend: OpenBackend

    def __call__(self, rank: int, size: int, store: Store, epoch: int, timeout: float | None) -> TorchComm:
        """Open it."""
        import torch

        from torchcomms.comm import TorchComm

        opened, device = self.backend(rank, size, store, epoch, timeout), torch.device(self.backend.device)
        options = self.backend.options
        return TorchComm(opened, device, "kit", kind=type(opened), store=store, backend_options=options)


def shut(member: Any) -> None:
    """Close a backend, or finalize a communicator."""
    end = getattr(member, "finalize", None) or member.close
    end()


def soon(seconds: float = 10.0) -> float:
    """A deadline for what should happen at once."""
    return time.monotonic() + seconds


def results(world: World[M_co], function: Callable[[M_co], T]) -> list[T]:
    """Run on all ranks; the first error of any rank is raised."""
    found: list[T] = []
    for outcome in world.run(function):
        if isinstance(outcome, BaseException):
            raise outcome
        found.append(outcome)
    return found


def in_background(function: Callable[[], object]) -> threading.Thread:
    """Start a daemon thread."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def run_and_kill(
    world: World[M_co], function: Callable[[M_co], T], rank: int, after: float
) -> tuple[list[T | BaseException], float]:
    """Run on all ranks and kill `rank` `after` seconds later; the outcomes, and the monotonic second of the kill."""
    outcomes: list[T | BaseException] = []
    running = in_background(lambda: outcomes.extend(world.run(function)))
    running.join(after)
    killed = time.monotonic()
    able = world.kill(rank)
    running.join()
    if not able:
        raise AssertionError("this world cannot kill a rank, though the backend claims to notice; give it a kill")
    return outcomes, killed
