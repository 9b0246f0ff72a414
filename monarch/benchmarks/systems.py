"""The same verbs over the systems that are compared: this package, torchmonarch, Ray, and multiprocessing's pipes.

Run as a script in the system's own interpreter: `python systems.py SYSTEM MEASURE` prints one JSON object that maps
each measure to a list of samples.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

RANKS = 8


class Target:
    """What every system runs."""

    def __init__(self, torch: bool = False) -> None:
        if torch:
            __import__("torch")

    def ping(self) -> None:
        pass

    def pid(self) -> int:
        return os.getpid()

    def take(self, tensor: Any) -> None:
        pass

    def hang(self) -> None:
        time.sleep(60)


class Monarch:
    """This package and torchmonarch, which share the words used here."""

    def __init__(self) -> None:
        import monarch.actor
        from monarch.actor import Actor, endpoint, this_host

        # torchmonarch's own hook would interrupt this process at the first death.
        if hasattr(monarch.actor, "unhandled_fault_hook"):
            monarch.actor.unhandled_fault_hook = lambda failure: None
        methods = {name: endpoint(getattr(Target, name)) for name in ("ping", "pid", "take", "hang")}
        self.cls: Any = type("Remote", (Actor,), {"__init__": Target.__init__, **methods})
        self.host: Any = this_host()

    def start(self, count: int, torch: bool = False) -> None:
        self.procs = self.host.spawn_procs(per_host={"gpus": count})
        self.mesh = self.procs.spawn("targets", self.cls, torch)
        self.ranks = [self.mesh.slice(gpus=rank) for rank in range(count)]
        self.gather()

    def gather(self) -> None:
        self.mesh.ping.call().get()

    def call(self) -> None:
        self.ranks[0].ping.call_one().get()

    def pipeline(self, count: int) -> None:
        for future in [self.ranks[0].ping.call_one() for _ in range(count)]:
            future.get()

    async def awaited(self) -> None:
        await self.ranks[0].ping.call_one()

    def take(self, tensor: Any) -> None:
        self.ranks[0].take.call_one(tensor).get()

    def kill(self, rank: int) -> float:
        """Seconds from the signal to the error of a call that was under way."""
        pid = self.ranks[rank].pid.call_one().get()
        future = self.ranks[rank].hang.call_one()
        return error_after(pid, lambda: future.get(timeout=30))

    def stop(self) -> None:
        self.procs.stop().get()


class Ray:
    def __init__(self) -> None:
        import ray  # type: ignore[import-not-found]

        self.ray: Any = ray
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(num_cpus=64, object_store_memory=10**9, **quiet)
        self.cls = ray.remote(num_cpus=0)(Target)

    def start(self, count: int, torch: bool = False) -> None:
        self.actors = [self.cls.remote(torch) for _ in range(count)]
        self.gather()

    def gather(self) -> None:
        self.ray.get([actor.ping.remote() for actor in self.actors])

    def call(self) -> None:
        self.ray.get(self.actors[0].ping.remote())

    def pipeline(self, count: int) -> None:
        self.ray.get([self.actors[0].ping.remote() for _ in range(count)])

    async def awaited(self) -> None:
        await self.actors[0].ping.remote()

    def take(self, tensor: Any) -> None:
        self.ray.get(self.actors[0].take.remote(tensor))

    def kill(self, rank: int) -> float:
        pid = self.ray.get(self.actors[rank].pid.remote())
        reference = self.actors[rank].hang.remote()
        return error_after(pid, lambda: self.ray.get(reference, timeout=30))

    def stop(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)


class Pipe:
    """multiprocessing's pipes and pickles: the floor, without meshes, errors or supervision."""

    awaited: Any = None

    def start(self, count: int, torch: bool = False) -> None:
        import multiprocessing

        context = multiprocessing.get_context("forkserver")
        if torch:
            context.set_forkserver_preload(["torch", "systems"])
        self.pipes, self.processes = [], []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve_pipe, args=(theirs, torch), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.gather()

    def gather(self) -> None:
        for pipe in self.pipes:
            pipe.send(("ping", ()))
        for pipe in self.pipes:
            pipe.recv()

    def call(self) -> None:
        self.pipes[0].send(("ping", ()))
        self.pipes[0].recv()

    def pipeline(self, count: int) -> None:
        # A window, so that neither side's pipe fills.
        for at in range(count + 64):
            if at < count:
                self.pipes[0].send(("ping", ()))
            if at >= 64:
                self.pipes[0].recv()

    def take(self, tensor: Any) -> None:
        import pickle

        self.pipes[0].send_bytes(pickle.dumps(("take", (tensor,)), 5))
        self.pipes[0].recv()

    def kill(self, rank: int) -> float:
        self.pipes[rank].send(("hang", ()))
        return error_after(self.processes[rank].pid, self.pipes[rank].recv)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def serve_pipe(pipe: Any, torch: bool) -> None:
    target = Target(torch)
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(target, name)(*args))


def error_after(pid: Any, wait: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    try:
        wait()
    except Exception:
        return time.perf_counter() - begin
    raise AssertionError("the call on a killed process returned")


# --- measures ---------------------------------------------------------------------------------------------------


def samples(work: Callable[[], Any], count: int, warm: int) -> list[float]:
    for _ in range(warm):
        work()
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return times


def calls(system: Any) -> dict[str, list[float]]:
    system.start(RANKS)
    seen = {"call": samples(system.call, 1000, 100), "gather": samples(system.gather, 200, 20)}
    seen["pipelined"] = [2000 / seconds for seconds in samples(lambda: system.pipeline(2000), 5, 1)]
    if system.awaited is not None:
        seen["awaited"] = asyncio.run(awaited(system))
    return seen


async def awaited(system: Any) -> list[float]:
    times = []
    for _ in range(1100):
        begin = time.perf_counter()
        await system.awaited()
        times.append(time.perf_counter() - begin)
    return times[100:]


def spawn(system: Any) -> dict[str, list[float]]:
    import torch  # noqa: F401 - the controller of a training job has it, and so must the actors

    system.start(1, torch=True)
    system.stop()
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        system.start(RANKS, torch=True)
        times.append(time.perf_counter() - begin)
        system.stop()
    return {"spawn": times}


def tensor(system: Any) -> dict[str, list[float]]:
    import torch

    torch.set_num_threads(1)
    system.start(1, torch=True)
    large = torch.ones(1 << 24)
    return {"tensor": [large.nbytes / seconds for seconds in samples(lambda: system.take(large), 12, 3)]}


def kill(system: Any) -> dict[str, list[float]]:
    import torch  # noqa: F401 - as in spawn

    system.start(4, torch=True)
    seen: list[float] = []
    for rank in range(3):
        seen.append(system.kill(rank))
        print("\n" + json.dumps({"kill": seen}), flush=True)
    return {"kill": seen}


def main() -> None:
    name, measure = sys.argv[1:3]
    system: Any = {"monarch": Monarch, "torchmonarch": Monarch, "ray": Ray, "pipe": Pipe}[name]()
    seen = {"calls": calls, "spawn": spawn, "tensor": tensor, "kill": kill}[measure](system)
    print("\n" + json.dumps(seen), flush=True)
    system.stop()


if __name__ == "__main__":
    main()
