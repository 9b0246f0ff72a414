"""Checks of calls: the verbs, order, errors, and what travels in arguments and results."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from monarch.spec import Launcher
from monarch.testing.expect import RANKS, Check, equal, error_of, spec, text_of, true


@dataclass
class Parcel:
    """A dataclass that travels with what is nested in it."""

    content: Any


async def call_values(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec(args=(10,)))
    values = (await mesh.add.call(5, times=2)).values()
    equal("values() of a call over three ranks", list(values), [20, 20, 20])


async def call_items(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec({"a": 2, "b": 2}))
    items = [(dict(point), value) for point, value in (await mesh.total.call()).items()]
    wanted = [({"a": a, "b": b}, 0) for a in range(2) for b in range(2)]
    equal("items() of a call on a × b", items, wanted)


async def call_one(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec({"procs": 1}, args=(1,)))
    equal("call_one on one rank", await mesh.add.call_one(2), 3)


async def call_one_several(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    await error_of("call_one on three ranks", lambda: mesh.total.call_one())


async def choose(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    equal("the value of choose", await mesh.add.choose(1), 1)
    totals = sorted((await mesh.total.call()).values())
    equal("the ranks' states after one choose", totals, [0, 0, 1])


async def broadcast(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    for entry in range(50):
        answer: object = await _awaited(mesh.append.broadcast(entry))
        true(f"broadcast gave {answer!r}, not None", answer is None)
    logs = (await mesh.log.call()).values()
    equal("what 50 broadcasts before a call left on each rank", list(logs), [list(range(50))] * 3)


async def _awaited(result: Awaitable[object]) -> object:
    return await result


async def two_meshes(launcher: Launcher) -> None:
    first, second = await launcher.launch(spec(args=(1,)), spec({"workers": 2}, args=(2,)))
    seen = [list((await mesh.total.call()).values()) for mesh in (first, second)]
    equal("the states of two specs launched together", seen, [[1, 1, 1], [2, 2]])


async def ranks_apart(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec(kwargs={"start": 7}))
    await mesh.append.choose(1)
    lengths = sorted(len(log) for log in (await mesh.log.call()).values())
    equal("lengths of a list that one rank appended to", lengths, [0, 0, 1])


async def async_endpoint(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    equal("an async endpoint", list((await mesh.later.call("x")).values()), ["x"] * 3)
    equal("a sync endpoint beside it", list((await mesh.echo.call("y")).values()), ["y"] * 3)


async def endpoint_error(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    error = await error_of("an endpoint that raises", lambda: mesh.boom.call("the cause 42"))
    true(f"the message 'the cause 42' is not in {text_of(error)!r}", "the cause 42" in text_of(error))


async def endpoint_survives(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec({"procs": 1}))
    await mesh.add.call_one(1)
    await error_of("an endpoint that raises", lambda: mesh.boom.call_one("once"))
    equal("the state after an endpoint raised", await mesh.total.call_one(), 1)


async def unknown_endpoint(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    for name in ("totl", "hidden"):
        try:
            getattr(mesh, name)
        except AttributeError as error:
            true(f"the error for the unknown endpoint {name!r} does not name it: {error}", name in str(error))
        else:
            true(f"{name!r}, which the spec does not list, was accepted as an endpoint", False)


async def values_travel(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec({"procs": 1}))
    for value in (None, {"a": [1, (2.5, "x")]}, b"\0bytes", Parcel({"deep": (1, 2)})):
        equal("a value sent to echo and back", await mesh.echo.call_one(value), value)


async def tensors_travel(launcher: Launcher) -> None:
    import torch

    (mesh,) = await launcher.launch(spec({"procs": 1}))
    small, large = torch.arange(6).reshape(2, 3).t(), torch.arange(70_000, dtype=torch.float64)
    back = await mesh.echo.call_one(Parcel({"small": small, "more": [(large, torch.tensor(True))]}))
    seen = (back.content["small"], *back.content["more"][0])
    for sent, received in zip((small, large, torch.tensor(True)), seen, strict=True):
        true(f"a tensor {tuple(sent.shape)} {sent.dtype} came back changed", torch.equal(sent, received))
        true(f"a tensor of {sent.dtype} came back as {received.dtype}", sent.dtype == received.dtype)


async def extent(launcher: Launcher) -> None:
    (mesh,) = await launcher.launch(spec())
    equal("extent of the mesh", list(mesh.extent.items()), list(RANKS.items()))


CHECKS = (
    Check("mesh.extent", "a mesh has the extent of its spec", extent),
    Check("call.values", "call runs on all ranks and gathers a value from each, with all arguments", call_values),
    Check("call.items", "items() gives coordinates and values in row-major rank order", call_items),
    Check("call-one.value", "call_one gives the value itself", call_one),
    Check("call-one.several", "call_one on several ranks is an error", call_one_several),
    Check("choose.one-rank", "choose runs on exactly one rank", choose),
    Check("broadcast.order", "broadcasts give None and run in order with later calls", broadcast),
    Check("launch.several", "launch gives one mesh a spec, in order", two_meshes),
    Check("ranks.apart", "every rank is an object of its own", ranks_apart),
    Check("endpoint.async", "sync and async endpoints may be mixed in one class", async_endpoint),
    Check("endpoint.error", "an endpoint's error arrives with its message", endpoint_error),
    Check("endpoint.survives", "an endpoint's error leaves the actor and its state alive", endpoint_survives),
    Check("endpoint.unknown", "a name that is no endpoint is an AttributeError naming it", unknown_endpoint),
    Check("values.travel", "arguments and results arrive as they were", values_travel),
    Check(
        "tensors.travel",
        "tensors nested in arguments and results arrive as they were",
        tensors_travel,
        requires="torch",
    ),
)
