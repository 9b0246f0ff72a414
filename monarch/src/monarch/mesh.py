"""Meshes: hosts, the processes on them, and the actors in those."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar

from monarch.crew import Crew
from monarch.endpoint import Endpoint, describe, find
from monarch.engine.child import Place
from monarch.engine.process import Process
from monarch.engine.runtime import Runtime, runtime
from monarch.future import Future
from monarch.shape import Point, Selection
from monarch.spec import check_extent
from monarch.values import ValueMesh
from monarch.verbs import Verbs

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")

STOP_GRACE = 2.0
"""Seconds that a stopped process has to finish the endpoint that it runs."""


def this_host() -> HostMesh:
    """The machine that this code runs on, as a mesh of one host."""
    return HostMesh()


class HostMesh:
    """Machines on which processes can be started; in this version the one that this code runs on."""

    extent: Mapping[str, int] = {"hosts": 1}

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        *,
        name: str = "procs",
        env: Mapping[str, str] | Callable[[Point], Mapping[str, str]] | None = None,
        threads: int | None = None,
        preload: Sequence[str] = (),
        output: bool = True,
    ) -> ProcMesh:
        """Start processes, one for each point of `hosts` and the dimensions `per_host`; returns at once.

        env       environment beside the caller's; a function gets the coordinates
        threads   of each process's libraries; None: cores by processes, at least 1
        preload   modules that the processes should find imported; torch is, where the caller has it
        output    whether the processes' standard output and error are shown here, with a prefix
        """
        check_extent(per_host := dict(per_host or {"procs": 1}))
        return ProcMesh.start({**self.extent, **per_host}, name, env, threads, preload, output)


class ProcMesh:
    """Processes with named dimensions. A scope: leaving it stops them, at once if by an exception."""

    def __init__(self, engine: Runtime, processes: Sequence[Process], selection: Selection, names: list[str]) -> None:
        self._engine, self._processes, self._names = engine, processes, names
        self.selection = selection
        self._crews: list[Crew] = []

    @classmethod
    def start(
        cls,
        extent: Mapping[str, int],
        name: str,
        env: Mapping[str, str] | Callable[[Point], Mapping[str, str]] | None = None,
        threads: int | None = None,
        preload: Sequence[str] = (),
        output: bool = True,
    ) -> ProcMesh:
        """For launchers: processes of just this extent."""
        engine, selection, names = runtime(), Selection.all(extent), [name]
        points = selection.points()
        environs = [_environ(point, len(points), env(point) if callable(env) else env or {}) for point in points]
        prefixes = [partial(_prefix, names, point) if output else _no_prefix for point in points]
        threads = threads or max(1, (os.cpu_count() or 1) // len(points))
        return cls(engine, engine.spawn(environs, prefixes, threads, preload), selection, names)

    @property
    def extent(self) -> Mapping[str, int]:
        """The dimensions, with their sizes."""
        return self.selection.extent

    @property
    def ended(self) -> bool:
        """Whether no process is left."""
        return all(process.ended for process in self._processes)

    @property
    def pids(self) -> list[int | None]:
        """Process ids by rank; None for a process that is not forked yet."""
        return [self._processes[rank].pid for rank in self.selection.ranks()]

    def slice(self, **dims: int | slice) -> ProcMesh:
        """Part of the processes; stopping them is for the whole."""
        part = ProcMesh(self._engine, self._processes, self.selection.slice(**dims), self._names)
        part._crews = self._crews
        return part

    def spawn(self, name: str, actor: type[A], *args: Any, **kwargs: Any) -> ActorMesh[A]:
        """Put an actor into every process; returns at once. Calls wait for its constructor."""
        crew = self.crew(name, actor, args, kwargs, None)
        crew.table = describe(actor)
        return ActorMesh(crew, self.selection)

    def crew(
        self, name: str, actor: type | str, args: tuple[Any, ...], kwargs: Mapping[str, Any], endpoints: Any
    ) -> Crew:
        """For launchers: the actors, without the mesh around them."""
        points = {point.rank: point for point in self.selection.points()}
        places = {rank: Place(name, dict(point), self.selection.whole) for rank, point in points.items()}
        processes = {rank: self._processes[rank] for rank in points}
        crew = Crew(self._engine.reactor, name, points, processes)
        crew.create(places, actor, args, kwargs, endpoints)
        if not self._crews:
            self._names[0] = name
        self._crews.append(crew)
        return crew

    def stacks(self) -> Future[ValueMesh[str | None]]:
        """The stacks of every thread of each process, however busy it is; None of a process that has ended."""
        return self._ask("stacks")

    def ping(self) -> Future[ValueMesh[bool | None]]:
        """True from each process that is there, however busy its actors are; None of one that has ended."""
        return self._ask("ping")

    def _ask(self, verb: str) -> Future[ValueMesh[Any]]:
        answers: dict[int, object] = {}
        ranks = self.selection.ranks()
        future: Future[ValueMesh[Any]] = Future(
            self._engine.reactor, lambda: ValueMesh(self.selection, [answers[rank] for rank in ranks]), f"procs.{verb}"
        )

        def settle(rank: int, content: object) -> None:
            answers[rank] = content
            if len(answers) == len(ranks):
                future.settle()

        for rank in ranks:
            self._processes[rank].ask(verb, partial(settle, rank))
        return future

    def stop(self, grace: float = STOP_GRACE) -> Future[None]:
        """End the processes: each may finish the endpoint that it runs, for `grace` seconds. Idempotent."""
        for crew in self._crews:
            crew.stopped = True
        return _stop(self._engine, self._processes, grace)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(STOP_GRACE if kind is None else 0).get()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop(STOP_GRACE if kind is None else 0)

    def __repr__(self) -> str:
        return f"ProcMesh({dict(self.extent)})"


class ActorMesh(Generic[A]):
    """Actors with named dimensions. Each endpoint is an attribute; `mesh[Class.method]` is the same, typed.

    Its own attributes are few, and no endpoint can have their names.
    """

    def __init__(self, crew: Crew, selection: Selection, on_stop: Callable[[], Future[None]] | None = None) -> None:
        taken = sorted(set(crew.table) & set(dir(ActorMesh)))
        if taken:
            raise ValueError(f"endpoints of {crew.name} may not be called {', '.join(taken)}: meshes use those names")
        self._crew, self._selection, self._on_stop = crew, selection, on_stop

    @property
    def name(self) -> str:
        return self._crew.name

    @property
    def extent(self) -> Mapping[str, int]:
        """The dimensions, with their sizes."""
        return self._selection.extent

    @property
    def initialized(self) -> Future[None]:
        """Settled when all constructors have returned; raises what a constructor raised."""
        return self._crew.created

    def slice(self, **dims: int | slice) -> ActorMesh[A]:
        """Part of the actors. What an endpoint sees stays its full coordinates."""
        return ActorMesh(self._crew, self._selection.slice(**dims), self._on_stop)

    def __getattr__(self, name: str, /) -> Verbs[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        verbs: Verbs[..., Any] = Verbs(self._crew, self._selection, find(self._crew.table, self._crew.name, name))
        self.__dict__[name] = verbs  # the next look-up finds it without coming here
        return verbs

    def __getitem__(self, method: Endpoint[P, R]) -> Verbs[P, R]:
        verbs: Verbs[P, R] = getattr(self, method.function.__name__)
        return verbs

    def __iter__(self) -> Iterator[ActorMesh[A]]:
        """Each rank as a mesh of one."""
        for point in self._selection.points():
            yield ActorMesh(self._crew, Selection(self._selection.whole, dict(point)), self._on_stop)

    def __len__(self) -> int:
        return self._selection.size

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._crew.table]

    def stop(self) -> Future[None]:
        """End these actors, on all ranks, and the processes that were started for them. Idempotent."""
        return self._on_stop() if self._on_stop is not None else self._crew.stop()

    def __reduce__(self) -> Any:
        raise TypeError(f"the handle of {self._crew.name} cannot travel in a message in this version")

    def __repr__(self) -> str:
        return f"ActorMesh({self._crew.name!r}, {dict(self.extent)})"


def _stop(engine: Runtime, processes: Sequence[Process], grace: float) -> Future[None]:
    left = {process.number for process in processes if not process.ended}
    future: Future[None] = Future(engine.reactor, lambda: None, "stop")

    def ended(process: Process, death: object) -> None:
        left.discard(process.number)
        if not left:
            future.settle()

    if not left:
        return Future.of(lambda: None, "stop")
    for process in processes:
        process.stop()
        process.at_end(partial(ended, process))
    if grace:
        engine.reactor.later(grace, partial(engine.kill, processes))
    else:
        engine.kill(processes)
    return future


def _environ(point: Point, size: int, own: Mapping[str, str]) -> dict[str, str]:
    local = prod(size for name, size in point.extent.items() if name != "hosts")
    ranks = {"RANK": point.rank, "WORLD_SIZE": size, "LOCAL_RANK": point.rank % local, "LOCAL_WORLD_SIZE": local}
    return {name: str(number) for name, number in ranks.items()} | dict(own)


def _prefix(names: list[str], point: Point) -> str | None:
    coordinates = " ".join(f"{name}={index}" for name, index in point.items())
    return f"[{names[0]} {coordinates}] "


def _no_prefix() -> str | None:
    return None
