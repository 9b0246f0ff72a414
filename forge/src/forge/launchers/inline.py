"""The in-process launcher: every rank is an object with a thread of its own, and nothing is copied."""

from __future__ import annotations

import asyncio
import copy
import inspect
import itertools
import logging
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from math import prod
from typing import Any

from forge.errors import LaunchError

__all__ = ["InlineLauncher", "InlineMesh", "InlineValues", "make"]

log = logging.getLogger(__name__)


def make(**options: Any) -> InlineLauncher:
    """What the entry point names; the in-process launcher has no options."""
    if options:
        raise TypeError(f"the inline launcher has no options, but was given {', '.join(sorted(options))}")
    return InlineLauncher()


class InlineLauncher:
    """Runs actors in this process: for laptops, notebooks, tests and debuggers.

    Sync endpoints run in their rank's thread, async ones on the caller's loop; a rank runs one at a time, in the order
    of the calls. Arguments and results are passed, not copied. RANK, WORLD_SIZE, LOCAL_RANK and the spec's
    environment are set while a constructor runs, and only then, so `env` is not among the capabilities.
    """

    interface = (1, 0)
    name = "inline"
    capabilities: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._meshes: list[InlineMesh] = []

    async def launch(self, *specs: Any) -> tuple[InlineMesh, ...]:
        """One mesh a spec; where a constructor raises, everything of this call is stopped and the error is raised."""
        made: list[InlineMesh] = []
        try:
            for spec in specs:
                made.append(InlineMesh(spec))
                await made[-1]._construct(spec)
        except BaseException:
            for mesh in made:
                await mesh.stop()
            raise
        self._meshes += made
        return tuple(made)

    async def close(self) -> None:
        """Stop all meshes."""
        while self._meshes:
            await self._meshes.pop().stop()


class InlineMesh:
    """The ranks of one spec; an endpoint is an attribute with `call`, `call_one`, `choose` and `broadcast`."""

    def __init__(self, spec: Any) -> None:
        if spec.endpoints is None:
            raise LaunchError(f"the spec of {spec.actor!r} lists no endpoints; the inline launcher runs plain classes")
        self.extent: Mapping[str, int] = dict(spec.extent)
        self._name = spec.name or str(spec.actor)
        self._endpoints = frozenset(spec.endpoints)
        self._ranks: list[_Rank] = []
        self._turn = itertools.count()
        self._stopped = False

    async def _construct(self, spec: Any) -> None:
        actor, size = _resolve(spec.actor), prod(self.extent.values())
        for rank in range(size):
            self._ranks.append(_Rank())
            with _environment({**spec.env, "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank}):
                # Ranks are objects apart, so they do not share what they were constructed from either.
                args, kwargs = copy.deepcopy((tuple(spec.args), dict(spec.kwargs)))
                await self._ranks[rank].construct(actor, args, kwargs)

    def __getattr__(self, endpoint: str) -> _Verbs:
        if endpoint not in self.__dict__.get("_endpoints", ()):
            known = ", ".join(sorted(self.__dict__.get("_endpoints", ())))
            raise AttributeError(f"{endpoint!r} is not an endpoint of {self.__dict__.get('_name')}; it has {known}")
        return _Verbs(self, endpoint)

    def _start(self, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[asyncio.Task[Any]]:
        """Begin a call on every rank."""
        return [self._start_on(rank, endpoint, args, kwargs) for rank in range(len(self._ranks))]

    def _start_on(self, rank: int, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> asyncio.Task[Any]:
        if self._stopped:
            raise LaunchError(f"{self._name} was stopped; launch it again to call {endpoint}")
        return asyncio.create_task(self._ranks[rank].run(endpoint, args, kwargs))

    async def stop(self) -> None:
        """Let each rank finish what it runs, then end it."""
        self._stopped = True
        for rank in self._ranks:
            await asyncio.to_thread(rank.thread.shutdown, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class InlineValues:
    """One value a rank."""

    extent: Mapping[str, int]
    results: list[Any]

    def values(self) -> list[Any]:
        """The values in rank order."""
        return list(self.results)

    def items(self) -> Iterator[tuple[dict[str, int], Any]]:
        """Coordinates and value, in rank order."""
        points = itertools.product(*(range(size) for size in self.extent.values()))
        for point, value in zip(points, self.results, strict=True):
            yield dict(zip(self.extent, point, strict=True)), value


@dataclass(frozen=True, slots=True)
class _Verbs:
    mesh: InlineMesh
    endpoint: str

    async def call(self, *args: Any, **kwargs: Any) -> InlineValues:
        results = await asyncio.gather(*self.mesh._start(self.endpoint, args, kwargs), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if len(errors) == 1 or (errors and not all(isinstance(error, Exception) for error in errors)):
            raise errors[0]
        if errors:
            raise BaseExceptionGroup(f"{self.endpoint} failed on {len(errors)} ranks, first {errors[0]!r}", errors)
        return InlineValues(self.mesh.extent, results)

    async def call_one(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.mesh._ranks) != 1:
            raise LaunchError(
                f"call_one({self.endpoint}) needs one rank, not {len(self.mesh._ranks)}; use choose or call"
            )
        return await self.mesh._start_on(0, self.endpoint, args, kwargs)

    async def choose(self, *args: Any, **kwargs: Any) -> Any:
        rank = next(self.mesh._turn) % len(self.mesh._ranks)
        return await self.mesh._start_on(rank, self.endpoint, args, kwargs)

    async def broadcast(self, *args: Any, **kwargs: Any) -> None:
        for task in self.mesh._start(self.endpoint, args, kwargs):
            _unwaited.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        _unwaited.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("broadcast of %s failed", self.endpoint, exc_info=task.exception())


# The loop keeps only weak references to tasks; a broadcast's would vanish before it ran.
_unwaited: set[asyncio.Task[Any]] = set()


@dataclass(slots=True)
class _Rank:
    """One actor object, its thread, and whose turn it is."""

    actor: Any = None
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "forge-inline"))
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # fair: first come, first served

    async def construct(self, actor: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        self.actor = await loop.run_in_executor(self.thread, lambda: actor(*args, **kwargs))

    async def run(self, endpoint: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        method = getattr(self.actor, endpoint)
        async with self.turn:
            if inspect.iscoroutinefunction(method):
                return await method(*args, **kwargs)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.thread, lambda: method(*args, **kwargs))


def _resolve(actor: str | type[Any]) -> type[Any]:
    if isinstance(actor, type):
        return actor
    module, _, path = actor.partition(":")
    found: Any = import_module(module)
    for attribute in path.split("."):
        if not hasattr(found, attribute):
            raise LaunchError(f"{actor!r}: {module} has no {path}; is the class at the module's top?")
        found = getattr(found, attribute)
    return found  # type: ignore[no-any-return]


@contextmanager
def _environment(variables: Mapping[str, object]) -> Iterator[None]:
    """Set environment variables and put back what was there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
