"""The conformance kit, tried on a launcher that keeps the contract and on launchers that break one clause each."""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
import os
import subprocess
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from monarch.testing import CHECKS, check_launcher

pytestmark = pytest.mark.contract


class Values:
    def __init__(self, points: list[dict[str, int]], values: list[Any]) -> None:
        self.points, self.listed = points, values

    def values(self) -> list[Any]:
        return self.listed

    def items(self) -> list[tuple[dict[str, int], Any]]:
        return list(zip(self.points, self.listed, strict=True))


class Verbs:
    def __init__(self, mesh: Mesh, name: str) -> None:
        self.mesh, self.name = mesh, name

    async def on(self, ranks: list[int], args: Any, kwargs: Any) -> list[Any]:
        if self.mesh.stopped:
            raise RuntimeError("the mesh was stopped")
        values = []
        for rank in ranks:
            value = getattr(self.mesh.actors[rank], self.name)(*args, **kwargs)
            values.append(await value if inspect.isawaitable(value) else value)
        return values

    async def call(self, *args: Any, **kwargs: Any) -> Values:
        return Values(self.mesh.points(), await self.on(list(range(len(self.mesh.actors))), args, kwargs))

    async def call_one(self, *args: Any, **kwargs: Any) -> Any:
        if len(self.mesh.actors) != 1:
            raise ValueError("call_one needs one rank")
        return (await self.on([0], args, kwargs))[0]

    async def choose(self, *args: Any, **kwargs: Any) -> Any:
        return (await self.on([0], args, kwargs))[0]

    async def broadcast(self, *args: Any, **kwargs: Any) -> None:
        await self.call(*args, **kwargs)


class Mesh:
    verbs: type[Verbs] = Verbs

    def __init__(self, spec: Any) -> None:
        self.spec, self.extent, self.stopped = spec, dict(spec.extent), False
        module, _, name = spec.actor.partition(":")
        cls = getattr(importlib.import_module(module), name)
        self.actors = [self.construct(cls, spec, rank) for rank in range(spec.size)]

    def construct(self, cls: type, spec: Any, rank: int) -> Any:
        return cls(*spec.args, **spec.kwargs)

    def points(self) -> list[dict[str, int]]:
        return [
            dict(zip(self.spec.extent, point, strict=True)) for point in product(*map(range, self.spec.extent.values()))
        ]

    def __getattr__(self, name: str) -> Verbs:
        if name not in self.spec.endpoints:
            raise AttributeError(f"no endpoint {name}")
        return self.verbs(self, name)

    async def stop(self) -> None:
        self.stopped = True


class Launcher:
    """Keeps the contract in one process, and claims neither capability."""

    interface, name, capabilities = (1, 0), "reference", frozenset[str]()
    mesh: type[Mesh] = Mesh

    def __init__(self) -> None:
        self.meshes: list[Mesh] = []

    async def launch(self, *specs: Any) -> tuple[Mesh, ...]:
        meshes = tuple(self.mesh(spec) for spec in specs)
        self.meshes += meshes
        return meshes

    async def close(self) -> None:
        for mesh in self.meshes:
            await mesh.stop()


def with_verbs(**methods: Any) -> type[Launcher]:
    return with_mesh(verbs=type("BrokenVerbs", (Verbs,), methods))


def with_mesh(**members: Any) -> type[Launcher]:
    return type("BrokenLauncher", (Launcher,), {"mesh": type("BrokenMesh", (Mesh,), members)})


def with_launcher(**members: Any) -> type[Launcher]:
    return type("BrokenLauncher", (Launcher,), members)


# --- what each broken part does -------------------------------------------------------------------------------


async def drop_keywords(self: Verbs, *args: Any, **kwargs: Any) -> Values:
    return await Verbs.call(self, *args)


def flat_extent(self: Mesh, spec: Any) -> None:
    Mesh.__init__(self, spec)
    self.extent = {"ranks": spec.size}


def columns_first(self: Mesh) -> list[dict[str, int]]:
    return sorted(Mesh.points(self), key=lambda point: tuple(reversed(point.values())))


async def one_in_a_list(self: Verbs, *args: Any, **kwargs: Any) -> Any:
    return (
        [await Verbs.call_one(self, *args, **kwargs)]
        if self.name == "add" and args == (2,)
        else await Verbs.call_one(self, *args, **kwargs)
    )


async def first_of_several(self: Verbs, *args: Any, **kwargs: Any) -> Any:
    return (await self.on([0], args, kwargs))[0]


async def choose_all(self: Verbs, *args: Any, **kwargs: Any) -> Any:
    ranks = range(len(self.mesh.actors)) if self.name == "add" else [0]
    return (await self.on(list(ranks), args, kwargs))[0]


async def broadcast_backwards(self: Verbs, entry: int) -> None:
    for actor in self.mesh.actors:
        actor.entries.insert(0, entry)


async def second_first(self: Launcher, *specs: Any) -> tuple[Mesh, ...]:
    return tuple(reversed(await Launcher.launch(self, *specs)))


def share_entries(self: Mesh, cls: type, spec: Any, rank: int) -> Any:
    actor = Mesh.construct(self, cls, spec, rank)
    # Only the list of a mesh that starts at 7 is shared: the one of the check for it.
    actor.entries = self.__dict__.setdefault("entries", actor.entries) if actor.value == 7 else actor.entries
    return actor


async def never_await(self: Verbs, ranks: list[int], args: Any, kwargs: Any) -> list[Any]:
    if self.name != "later":
        return await Verbs.on(self, ranks, args, kwargs)
    coroutines = [getattr(self.mesh.actors[rank], self.name)(*args, **kwargs) for rank in ranks]
    for coroutine in coroutines:
        coroutine.close()
    return coroutines


async def hide_message(self: Verbs, *args: Any, **kwargs: Any) -> Values:
    try:
        return await Verbs.call(self, *args, **kwargs)
    except ValueError:
        raise RuntimeError("the call failed") from None


async def die_of_error(self: Verbs, *args: Any, **kwargs: Any) -> Any:
    try:
        return await Verbs.call_one(self, *args, **kwargs)
    except ValueError:
        self.mesh.stopped = self.name == "boom"
        raise


def any_method(self: Mesh, name: str) -> Verbs:
    if name != "hidden":
        return Mesh.__getattr__(self, name)
    return self.verbs(self, name)


async def lists_for_tuples(self: Verbs, *args: Any, **kwargs: Any) -> Any:
    value = await Verbs.call_one(self, *args, **kwargs)
    return {"a": [1, [2.5, "x"]]} if value == {"a": [1, (2.5, "x")]} else value


async def float_tensors(self: Verbs, *args: Any, **kwargs: Any) -> Any:
    value = copy.copy(await Verbs.call_one(self, *args, **kwargs))
    if hasattr(value, "content") and "more" in value.content:
        value.content = value.content | {"small": value.content["small"].float()}
    return value


async def partly_placed(self: Launcher, *specs: Any) -> tuple[Mesh, ...]:
    return await Launcher.launch(self, *(spec for spec in specs if "NoSuchActor" not in spec.actor))


async def constructor_hidden(self: Launcher, *specs: Any) -> tuple[Mesh, ...]:
    try:
        return await Launcher.launch(self, *specs)
    except ValueError:
        raise RuntimeError("an actor could not be constructed") from None


async def stop_once(self: Mesh) -> None:
    if self.stopped and not getattr(self, "closing", False):
        raise RuntimeError("stopped before")
    self.stopped = True


async def stop_nothing(self: Mesh) -> None:
    self.stopped = getattr(self, "closing", False)


async def close_marking(self: Launcher) -> None:
    for mesh in self.meshes:
        mesh.closing = True  # type: ignore[attr-defined]
        await mesh.stop()


async def close_nothing(self: Launcher) -> None:
    pass


async def close_once(self: Launcher) -> None:
    await Launcher.close(self)
    if self.__dict__.setdefault("closed", False):
        raise RuntimeError("closed before")
    self.closed = True  # type: ignore[attr-defined]


async def stop_all(self: Mesh) -> None:
    self.stopped = True
    for other in self.launcher.meshes:  # type: ignore[attr-defined]
        other.stopped = True


async def launch_linked(self: Launcher, *specs: Any) -> tuple[Mesh, ...]:
    meshes = await Launcher.launch(self, *specs)
    for mesh in meshes:
        mesh.launcher = self  # type: ignore[attr-defined]
    return meshes


def environment(missing: str = "", order: int = 1) -> Any:
    def construct(self: Mesh, cls: type, spec: Any, rank: int) -> Any:
        actor = Mesh.construct(self, cls, spec, rank)
        number = str(rank if order == 1 else spec.size - 1 - rank)
        ranks = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": str(spec.size)}
        actor.environment = {k: v for k, v in (ranks | spec.env).items() if k != missing}
        return actor

    return construct


def claiming(capability: str, **members: Any) -> type[Launcher]:
    return type("Claiming", (with_mesh(**members),), {"capabilities": frozenset({capability})})


STARTED: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    end(STARTED)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
    processes.clear()


class Processes(claiming("processes")):  # type: ignore[misc]
    """Shows the pids of processes that it starts, and ends them on close."""

    async def launch(self, *specs: Any) -> tuple[Mesh, ...]:
        meshes = await Launcher.launch(self, *specs)
        for actor in (actor for mesh in meshes for actor in mesh.actors):
            STARTED.append(subprocess.Popen(["sleep", "60"]))
            actor.pid = lambda pid=STARTED[-1].pid: pid
        return meshes

    async def close(self) -> None:
        await Launcher.close(self)
        end(STARTED)


class Leaking(Processes):
    """Leaves its processes."""

    async def close(self) -> None:
        await Launcher.close(self)


class SamePid(Processes):
    async def launch(self, *specs: Any) -> tuple[Mesh, ...]:
        meshes = await Launcher.launch(self, *specs)
        for actor in (actor for mesh in meshes for actor in mesh.actors):
            actor.pid = os.getpid
        return meshes


BROKEN: dict[str, type[Launcher]] = {
    "mesh.extent": with_mesh(__init__=flat_extent),
    "call.values": with_verbs(call=drop_keywords),
    "call.items": with_mesh(points=columns_first),
    "call-one.value": with_verbs(call_one=one_in_a_list),
    "call-one.several": with_verbs(call_one=first_of_several),
    "choose.one-rank": with_verbs(choose=choose_all),
    "broadcast.order": with_verbs(broadcast=broadcast_backwards),
    "launch.several": with_launcher(launch=second_first),
    "ranks.apart": with_mesh(construct=share_entries),
    "endpoint.async": with_verbs(on=never_await),
    "endpoint.error": with_verbs(call=hide_message),
    "endpoint.survives": with_verbs(call_one=die_of_error),
    "endpoint.unknown": with_mesh(__getattr__=any_method),
    "values.travel": with_verbs(call_one=lists_for_tuples),
    "tensors.travel": with_verbs(call_one=float_tensors),
    "launcher.interface": with_launcher(interface=(2, 0)),
    "launch.all-or-none": with_launcher(launch=partly_placed),
    "constructor.error": with_launcher(launch=constructor_hidden),
    "stop.idempotent": type("StopOnce", (with_mesh(stop=stop_once),), {"close": close_marking}),
    "stop.refuses": type("StopNothing", (with_mesh(stop=stop_nothing),), {"close": close_marking}),
    "stop.one": type("StopAll", (with_mesh(stop=stop_all),), {"launch": launch_linked}),
    "close.stops": with_launcher(close=close_nothing),
    "close.idempotent": with_launcher(close=close_once),
    "env.spec": claiming("env", construct=environment(missing="WORLD_SIZE")),
    "env.rank-order": claiming("env", construct=environment(order=-1)),
    "processes.apart": SamePid,
    "processes.gone": Leaking,
}


@pytest.mark.parametrize("launcher", [Launcher, claiming("env", construct=environment()), Processes])
def test_launcher_that_keeps_the_contract_passes(launcher: type[Launcher]) -> None:
    report = check_launcher(launcher)
    assert report.failed == {}
    assert set(report.ran) | set(report.unclaimed) == {check.id for check in CHECKS}


def test_capability_that_is_not_claimed_is_reported() -> None:
    assert set(check_launcher(Launcher).unclaimed) == {check.id for check in CHECKS if check.capability}


def test_every_check_has_a_broken_launcher() -> None:
    assert [check.id for check in CHECKS] == list(BROKEN)


@pytest.mark.parametrize("check", BROKEN)
def test_broken_launcher_fails_one_check(check: str) -> None:
    report = check_launcher(BROKEN[check])
    assert list(report.failed) == [check], report.failed
    assert "contract:" in report.failed[check]


def test_launcher_that_hangs_fails_at_the_deadline() -> None:
    async def launch(self: Launcher, *specs: Any) -> tuple[Mesh, ...]:
        await asyncio.Event().wait()
        return ()

    report = check_launcher(with_launcher(launch=launch), deadline=0.01)
    assert "not done after 0.01 s" in report.failed["call.values"]
