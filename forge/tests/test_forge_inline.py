"""The in-process launcher: ranks, verbs, order, errors and ends."""

import asyncio
import os
import threading

import pytest

from forge.errors import LaunchError
from forge.launchers.inline import make
from forge.spec import ActorSpec

pytestmark = pytest.mark.unit


class Actor:
    def __init__(self, items=(), fail=False):
        if fail:
            raise ValueError("no such weights")
        self.items, self.rank = items, int(os.environ["RANK"])
        self.environment = {name: os.environ.get(name) for name in ("WORLD_SIZE", "LOCAL_RANK", "EXTRA")}

    def append(self, item):
        self.items.append(item)
        return list(self.items)

    def where(self):
        return self.rank, self.environment

    def thread(self):
        return threading.current_thread().name

    async def later(self, item):
        await asyncio.sleep(0)
        return self.append(item)

    def fail(self, rank=None):
        if rank in (None, self.rank):
            raise ValueError(f"rank {self.rank} failed")


ENDPOINTS = ("append", "fail", "later", "thread", "where")


def spec(size=1, **changes):
    settings = {"actor": f"{__name__}:Actor", "endpoints": ENDPOINTS, "extent": {"hosts": 1, "procs": size}}
    return ActorSpec(**{**settings, "actor": Actor, **changes})


def run(body, *specs):
    async def main():
        launcher = make()
        try:
            async with asyncio.timeout(20):
                return await body(*await launcher.launch(*specs))
        finally:
            await launcher.close()

    return asyncio.run(main())


def test_ranks_are_objects_apart_with_their_variables():
    async def body(mesh):
        await mesh.append.choose(1)
        places = (await mesh.where.call()).values()
        return places, sorted(map(len, (await mesh.append.call(2)).values())), (await mesh.append.call(3)).items()

    before = dict(os.environ)
    places, lengths, items = run(body, spec(3, args=([],), env={"EXTRA": "x"}))
    assert places == [(r, {"WORLD_SIZE": "3", "LOCAL_RANK": str(r), "EXTRA": "x"}) for r in range(3)]
    assert lengths == [1, 1, 2]
    assert [point for point, _ in items] == [{"hosts": 0, "procs": rank} for rank in range(3)]
    assert dict(os.environ) == before


def test_calls_run_in_order_whether_sync_or_async():
    async def body(mesh):
        for item in range(0, 20, 2):
            await mesh.append.broadcast(item)
            await mesh.later.broadcast(item + 1)
        return await mesh.append.call_one("end")

    assert run(body, spec(args=([],))) == [*range(20), "end"]


def test_each_rank_has_its_thread():
    async def body(mesh):
        return (await mesh.thread.call()).values(), (await mesh.thread.call()).values()

    first, second = run(body, spec(2))
    assert first == second
    assert threading.current_thread().name not in first


def test_errors_arrive_and_leave_the_actor_alive():
    async def body(mesh):
        with pytest.raises(ValueError, match="rank 1 failed"):
            await mesh.fail.call(1)
        with pytest.raises(ExceptionGroup, match="failed on 2 ranks") as caught:
            await mesh.fail.call()
        with pytest.raises(LaunchError, match="needs one rank, not 2"):
            await mesh.append.call_one(1)
        with pytest.raises(AttributeError, match=r"'missing' is not an endpoint of .* append, fail"):
            _ = mesh.missing
        return [str(error) for error in caught.value.exceptions], (await mesh.append.call(1)).values()

    assert run(body, spec(2, args=([],))) == (["rank 0 failed", "rank 1 failed"], [[1], [1]])


def test_a_failed_broadcast_is_logged(caplog):
    async def body(mesh):
        await mesh.fail.broadcast()
        return await mesh.append.call_one(1)

    assert run(body, spec(args=([],))) == [1]
    assert "broadcast of fail failed" in caplog.text


def test_a_launch_is_all_or_nothing():
    async def main():
        launcher = make()
        with pytest.raises(ValueError, match="no such weights"):
            await launcher.launch(spec(2), spec(kwargs={"fail": True}))
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("forge-inline")]
        with pytest.raises(LaunchError, match="has no Missing"):
            await launcher.launch(spec(actor="forge.trainer:Missing"))
        with pytest.raises(LaunchError, match="lists no endpoints"):
            await launcher.launch(spec(endpoints=None))
        (mesh,) = await launcher.launch(spec())
        await mesh.stop()
        await mesh.stop()
        with pytest.raises(LaunchError, match="was stopped"):
            await mesh.where.call()
        await launcher.close()
        await launcher.close()

    asyncio.run(main())


def test_it_has_no_options():
    with pytest.raises(TypeError, match="no options"):
        make(size=3)
