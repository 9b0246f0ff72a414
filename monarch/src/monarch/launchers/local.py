"""The launcher `local`: processes on this machine, forked from a zygote."""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from monarch.errors import PlacementError
from monarch.mesh import ActorMesh, ProcMesh
from monarch.shape import Point
from monarch.spec import ActorSpec, Launcher, interface


def make(*, output: bool = True, gpus: int | None = None) -> Launcher:
    """A launcher of its own: `output` shows what actors print, `gpus` is how many there are (None: looks)."""
    return LocalLauncher(output, len(glob.glob("/dev/nvidia[0-9]*")) if gpus is None else gpus)


@dataclass(frozen=True, slots=True)
class Placed:
    """The processes of one spec and the devices that they hold."""

    procs: ProcMesh
    gpus: tuple[int, ...]


class LocalLauncher:
    """Carries specs out on this machine. Cores are shared; GPUs and memory beyond what there is are refused."""

    interface = interface
    name = "local"
    capabilities = frozenset({"env", "processes"})

    def __init__(self, output: bool, gpus: int) -> None:
        self._output, self._gpus = output, gpus
        self._placed: list[Placed] = []
        self._closed = False

    async def launch(self, *specs: ActorSpec) -> tuple[ActorMesh[Any], ...]:
        """Start the specs and wait for their constructors.

        Raises PlacementError, or what a constructor raised; then none of them runs.
        """
        if self._closed:
            raise PlacementError("the launcher is closed; make another")
        free = self._free_gpus()
        _check(specs, len(free))
        placed: list[Placed] = []
        try:
            for spec in specs:
                placed.append(self._place(spec, free, sum(spec.size for spec in specs)))
            crews = [
                one.procs.crew(_name(spec), spec.actor, spec.args, spec.kwargs, spec.endpoints)
                for spec, one in zip(specs, placed, strict=True)
            ]
            for crew in crews:
                await crew.created
            meshes = [
                ActorMesh[Any](crew, one.procs.selection, one.procs.stop)
                for crew, one in zip(crews, placed, strict=True)
            ]
        except BaseException:
            await asyncio.shield(_stopped(placed, grace=0))
            raise
        self._placed += placed
        return tuple(meshes)

    def _free_gpus(self) -> list[int]:
        held = {gpu for one in self._placed if not one.procs.ended for gpu in one.gpus}
        return [gpu for gpu in range(self._gpus) if gpu not in held]

    def _place(self, spec: ActorSpec, free: list[int], total: int) -> Placed:
        each = int(spec.resources.get("gpus", 0))
        gpus = tuple(free.pop(0) for _ in range(each * spec.size))

        def env(point: Point) -> Mapping[str, str]:
            own = gpus[point.rank * each : (point.rank + 1) * each]
            visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, own))} if each else {}
            return visible | dict(spec.env)

        threads = int(spec.resources.get("cpus", 0)) or max(1, (os.cpu_count() or 1) // total)
        return Placed(ProcMesh.start(spec.extent, _name(spec), env, threads, output=self._output), gpus)

    async def close(self) -> None:
        """Stop every mesh. Idempotent."""
        self._closed = True
        placed, self._placed = self._placed, []
        await _stopped(placed)


async def _stopped(placed: Iterable[Placed], **how: float) -> None:
    for future in [one.procs.stop(**how) for one in placed]:
        await future


def _name(spec: ActorSpec) -> str:
    cls = spec.actor if isinstance(spec.actor, str) else spec.actor.__qualname__
    return spec.name or cls.rpartition(":")[2]


def _check(specs: Iterable[ActorSpec], free_gpus: int) -> None:
    """Everything that can be known before anything is started."""
    gpus = memory = 0.0
    for spec in specs:
        each = spec.resources.get("gpus", 0)
        if each != int(each):
            raise PlacementError(f"{_name(spec)} asks for {each:g} GPUs a rank; the local launcher gives whole ones")
        if spec.restart != "never":
            raise PlacementError(
                f"{_name(spec)} asks for restart {spec.restart!r}; the local launcher of this version only has 'never'"
            )
        gpus += each * spec.size
        memory += spec.resources.get("memory", 0) * spec.size
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if gpus > free_gpus:
        raise PlacementError(f"the specs ask for {gpus:g} GPUs and {free_gpus} are free here; nothing was started")
    if memory > there:
        raise PlacementError(
            f"the specs ask for {memory:.3g} bytes of memory and this machine has {there:.3g}; nothing was started"
        )
