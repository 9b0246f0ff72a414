"""Memory: leases of shared memory end when they should and not before, and floods wait for credit."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from monarch.actor import Actor, ActorMesh, ProcMesh, endpoint, this_host
from monarch.engine.framing import Region
from monarch.engine.link import LIMIT_BYTES
from monarch.engine.pickling import dumps, loads
from monarch.engine.runtime import runtime
from monarch.engine.slab import SHARED, InSlab, Leases, OutSlab, make_slab

LONG = 30.0
MEBIBYTE = 1 << 20

# --- one process ------------------------------------------------------------------------------------------------


@pytest.fixture
def slabs() -> Iterator[tuple[Leases, InSlab, OutSlab]]:
    fd = make_slab()
    outgoing, incoming = OutSlab(fd), InSlab(fd)
    yield Leases(outgoing), incoming, outgoing
    incoming.close()


VIEWS: dict[str, Callable[[np.ndarray], object]] = {
    "itself": lambda array: array,
    "slice": lambda array: array[10:20],
    "frombuffer": lambda array: np.frombuffer(array, np.float32)[1:].reshape(1, -1),
    "memoryview": lambda array: memoryview(array)[3:],
    "torch": lambda array: torch.from_numpy(array).view(torch.float32)[5:].reshape(1, -1),
    "torch detached": lambda array: torch.from_numpy(array).requires_grad_(False).detach()[:1],
    "pickled numpy": lambda array: loads(dumps(np.zeros(SHARED, np.uint8), "a").body, [array])[1:],
    "pickled torch": lambda array: loads(dumps(torch.zeros(SHARED, dtype=torch.uint8), "a").body, [array])[1:],
}


@pytest.mark.unit
@pytest.mark.parametrize("view", VIEWS)
def test_lease_lasts_as_long_as_any_view(slabs: tuple[Leases, InSlab, OutSlab], view: str) -> None:
    leases, incoming, outgoing = slabs
    region = leases.place(bytes(SHARED))
    assert isinstance(region, Region)
    held = VIEWS[view](incoming.adopt(region))
    gc.collect()
    assert incoming.released() == []
    del held
    gc.collect()
    assert incoming.released() == [region.offset]
    leases.free([region.offset])
    assert outgoing.used == 0


@pytest.mark.unit
def test_small_buffers_and_those_without_room_stay_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monarch.engine.slab.SIZE", MEBIBYTE)
    fd = make_slab()
    outgoing = OutSlab(fd)
    os.close(fd)
    leases = Leases(outgoing)
    assert leases.place(bytes(SHARED - 1)) is None
    held = [leases.place(bytes(300 << 10)) for _ in range(4)]
    assert [region is None for region in held] == [False, False, False, True]
    leases.free_all()
    assert outgoing.used == 0


@pytest.mark.unit
def test_regions_hold_what_was_placed(slabs: tuple[Leases, InSlab, OutSlab]) -> None:
    leases, incoming, _ = slabs
    contents = [os.urandom(SHARED + extra) for extra in (0, 1, 5000)]
    regions = [leases.place(content) for content in contents]
    assert [incoming.adopt(region).tobytes() for region in regions if region is not None] == contents


@pytest.mark.unit
def test_offsets_that_are_not_held_are_ignored(slabs: tuple[Leases, InSlab, OutSlab]) -> None:
    leases, _, outgoing = slabs
    region = leases.place(bytes(SHARED))
    assert region is not None
    leases.free([region.offset + 4096])
    assert outgoing.used > 0
    leases.free([region.offset, region.offset])
    leases.free([region.offset])
    assert outgoing.used == 0


# --- real processes ---------------------------------------------------------------------------------------------


class Slow(Actor):
    """Takes nothing until somebody has opened the fifo at `gate` for writing."""

    def __init__(self, gate: str = os.devnull) -> None:
        self.gate = gate
        self.taken = 0
        self.kept: list[torch.Tensor] = []

    @endpoint
    def take(self, data: bytes | np.ndarray) -> int:
        if self.gate:
            Path(self.gate).read_bytes()
            self.gate = ""
        self.taken += len(data)
        return self.taken

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def keep(self, tensor: torch.Tensor) -> float:
        self.kept.append(tensor)
        return float(sum(kept[0] for kept in self.kept))


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs()
    yield mesh
    mesh.stop(0).get(LONG)


@pytest.fixture
def slow(procs: ProcMesh) -> ActorMesh[Slow]:
    return procs.spawn("slow", Slow)


def used() -> int:
    return runtime()._slab.used


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


@pytest.mark.system
def test_flood_of_broadcasts_waits_for_credit(procs: ProcMesh, gate: Path) -> None:
    slow, count, sent = procs.spawn("slow", Slow, str(gate)), 2 * LIMIT_BYTES // MEBIBYTE, []

    def flood() -> None:
        for number in range(count):
            slow.take.broadcast(bytes(MEBIBYTE))
            sent.append(number)

    thread = threading.Thread(target=flood)
    thread.start()
    (link,) = slow._crew.links.values()
    assert runtime().reactor.drive(lambda: link.blocked, LONG)
    assert len(sent) <= count // 2
    gate.write_bytes(b"")
    thread.join(LONG)
    assert len(sent) == count
    assert slow.take.call_one(b"").get(LONG) == count * MEBIBYTE


@pytest.mark.system
def test_await_of_a_broadcast_waits_for_credit(procs: ProcMesh, gate: Path) -> None:
    slow = procs.spawn("slow", Slow, str(gate))

    async def main() -> None:
        futures = [slow.take.broadcast(bytes(MEBIBYTE)) for _ in range(2 * LIMIT_BYTES // MEBIBYTE)]
        assert futures[0].done()
        assert not futures[-1].done()
        gate.write_bytes(b"")
        await futures[-1]
        assert await slow.take.call_one(b"") == 2 * LIMIT_BYTES

    asyncio.run(main())


@pytest.mark.system
def test_kept_tensors_stay_what_they_were_and_their_memory_comes_back(procs: ProcMesh, slow: ActorMesh[Slow]) -> None:
    for number in range(1, 11):
        assert slow.keep.call_one(torch.full((MEBIBYTE,), float(number))).get(LONG) == sum(range(number + 1))
    assert used() >= 10 * 4 * MEBIBYTE
    procs.stop(0).get(LONG)
    assert used() == 0


@pytest.mark.system
def test_memory_on_lease_to_a_killed_process_comes_back(slow: ActorMesh[Slow]) -> None:
    slow.keep.call_one(torch.ones(MEBIBYTE)).get(LONG)
    assert used() > 0
    os.kill(slow.pid.call_one().get(LONG), signal.SIGKILL)
    assert slow.keep.call_one(torch.ones(4)).exception(LONG) is not None
    assert used() == 0


@pytest.mark.system
def test_loop_of_large_tensors_uses_the_same_memory(slow: ActorMesh[Slow]) -> None:
    tensor, most = torch.ones(4 * MEBIBYTE), 0
    for _ in range(12):
        slow.take.call_one(tensor.numpy()).get(LONG)
        most = max(most, used())
    assert most <= 3 * tensor.nbytes
