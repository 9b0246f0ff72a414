"""The buffer: order, admission, and the staleness bound under any interleaving."""

import asyncio
import random

import pytest

from forge.buffer import Buffer
from forge.errors import StalenessError
from forge.samples import Sample

pytestmark = pytest.mark.unit


def group(version):
    return [Sample((1, 2), (0.0, -1.0), (-1, version), (0, 1), reward=0.0, group=0)]


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def test_a_bound_of_zero_alternates():
    async def check():
        buffer = Buffer(2, 0)
        await buffer.admit(2)
        assert buffer.free_slots == 0
        waiting = asyncio.create_task(buffer.admit(2))
        await buffer.put(0, [group(0), group(0)])
        await buffer.take()
        await asyncio.sleep(0)
        assert not waiting.done(), "training alone frees no slot: the generators still hold the old weights"
        await buffer.synced(1)
        await waiting

    run(check())


def test_groups_come_out_in_the_order_of_their_admission():
    async def check():
        buffer = Buffer(2, 1)
        await buffer.admit(4)
        groups = [group(0) for _ in range(4)]
        await buffer.put(1, groups[1:])
        taking = asyncio.create_task(buffer.take())
        await asyncio.sleep(0)
        assert not taking.done()
        await buffer.put(0, groups[:1])
        assert await taking == groups[:2]
        assert await buffer.take() == groups[2:]

    run(check())


def test_a_resumed_run_admits_no_more_than_its_bound():
    buffer = Buffer(8, 2, version=100)
    assert buffer.free_slots == 24


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_no_sample_is_older_than_the_bound_whatever_the_speeds(staleness, seed):
    """Rollouts by several workers and training yield at random; the ages of what is trained are observed."""
    pause, size, steps, ages = random.Random(seed), 3, 12, []

    async def idle():
        for _ in range(pause.randrange(4)):
            await asyncio.sleep(0)

    async def rollouts(buffer):
        while True:
            slot = await buffer.admit(1)
            version = buffer.version
            await idle()
            await buffer.put(slot, [group(version)])

    async def check():
        buffer = Buffer(size, staleness, version=5)
        workers = [asyncio.create_task(rollouts(buffer)) for _ in range(2)]
        for step in range(5, 5 + steps):
            groups = await buffer.take()
            buffer.check(groups)
            ages.extend(step - sample.version for one in groups for sample in one)
            await idle()
            await buffer.synced(step + 1)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    run(check())
    assert len(ages) == size * steps
    assert max(ages) <= staleness


def test_misuse_is_refused():
    buffer = Buffer(2, 1, version=4)
    with pytest.raises(StalenessError, match="of version 2 would train version 4; the bound is 1") as caught:
        buffer.check([group(2)])
    assert caught.value.bound == 1
    buffer.check([group(3)])
    with pytest.raises(StalenessError, match="version 6 follows 4"):
        run(buffer.synced(6))
    with pytest.raises(StalenessError, match="never fit"):
        run(buffer.admit(5))
    with pytest.raises(ValueError, match="positive"):
        Buffer(0, 0)
