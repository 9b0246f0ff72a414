"""Checks of lifetime: placing, constructors, environment, processes, stopping and closing."""

from __future__ import annotations

import os

from monarch.spec import Launcher
from monarch.testing.expect import Broken, Check, equal, error_of, spec, text_of, true


async def interface(launcher: Launcher) -> None:
    major, minor = launcher.interface
    true(f"interface is {major}.{minor}, not 1.0 or a later minor", major == 1 and minor >= 0)
    true(f"name is {launcher.name!r}, not a string", isinstance(launcher.name, str) and bool(launcher.name))
    true("capabilities is not a frozenset", isinstance(launcher.capabilities, frozenset))


async def all_or_none(launcher: Launcher) -> None:
    good, bad = spec(), spec(actor="monarch.testing.actors:NoSuchActor")
    error = await error_of("launch with a class that does not exist", lambda: launcher.launch(good, bad))
    true(f"the missing class is not named in {text_of(error)!r}", "NoSuchActor" in text_of(error))
    (mesh,) = await launcher.launch(spec({"procs": 1}, args=(3,)))
    equal("a call after a launch that failed", await mesh.total.call_one(), 3)


async def constructor_error(launcher: Launcher) -> None:
    broken = spec(kwargs={"fail": "no such weights"})
    error = await error_of("launch with a constructor that raises", lambda: launcher.launch(broken))
    true(f"the constructor's message is not in {text_of(error)!r}", "no such weights" in text_of(error))


async def environment(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec(env={"MONARCH_KIT": "set"}))
    equal("spec.env at construction", list((await mesh.environ.call("MONARCH_KIT")).values()), ["set"] * 3)
    sizes = (await mesh.environ.call("WORLD_SIZE")).values()
    equal("WORLD_SIZE", list(sizes), ["3"] * 3)


async def rank_order(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    for name in ("RANK", "LOCAL_RANK"):
        equal(f"{name} by rank", list((await mesh.environ.call(name)).values()), ["0", "1", "2"])


async def processes(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    pids = set((await mesh.pid.call()).values())
    equal("how many processes run three ranks, this one left out", len(pids - {os.getpid()}), 3)


async def processes_gone(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    pids = set((await mesh.pid.call()).values()) - {os.getpid()}
    await launcher.close()
    left = [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    true(f"processes {left} are still there after close", not left)


async def stop_twice(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    for attempt in ("first", "second"):
        try:
            await mesh.stop()
        except Exception as error:
            raise Broken(f"the {attempt} stop raised {type(error).__name__}: {error}") from error


async def stop_refuses(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    await mesh.stop()
    await error_of("a call on a stopped mesh", lambda: mesh.total.call())


async def stop_one(launcher: Launcher) -> None:
    first, second = await launcher.launch(spec(args=(4,)), spec(args=(4,)))
    await first.stop()
    equal("the other mesh after one stopped", list((await second.total.call()).values()), [4, 4, 4])


async def close_stops(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    await launcher.close()
    await error_of("a call after the launcher was closed", lambda: mesh.total.call())


async def close_twice(launcher: Launcher) -> None:
    await launcher.launch(spec())
    for attempt in ("first", "second"):
        try:
            await launcher.close()
        except Exception as error:
            raise Broken(f"the {attempt} close raised {type(error).__name__}: {error}") from error


CHECKS = (
    Check("launcher.interface", "a launcher states interface, name and capabilities", interface),
    Check("launch.all-or-none", "a launch that cannot place one spec raises, and the launcher goes on", all_or_none),
    Check("constructor.error", "launch raises what a constructor raised, with its message", constructor_error),
    Check("stop.idempotent", "stop may be called again", stop_twice),
    Check("stop.refuses", "a call on a stopped mesh is an error", stop_refuses),
    Check("stop.one", "stopping one mesh leaves the others", stop_one),
    Check("close.stops", "a call after close is an error", close_stops),
    Check("close.idempotent", "close may be called again", close_twice),
    Check("env.spec", "spec.env and WORLD_SIZE are set before user code", environment, "env"),
    Check("env.rank-order", "RANK and LOCAL_RANK are set before user code, in rank order", rank_order, "env"),
    Check("processes.apart", "every rank is a process of its own", processes, "processes"),
    Check("processes.gone", "close leaves no process", processes_gone, "processes"),
)
