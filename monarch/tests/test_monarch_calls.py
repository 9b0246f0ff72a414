"""Calls to real actor processes: every verb, sync and awaited, order, contexts, and what travels."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from monarch.actor import (
    Actor,
    ActorMesh,
    BadArguments,
    CallCancelled,
    CallTimeout,
    DirectCall,
    NotPicklable,
    ProcMesh,
    UnknownEndpoint,
    concurrent_endpoint,
    context,
    current_actor_name,
    current_rank,
    current_size,
    endpoint,
    this_host,
)

pytestmark = pytest.mark.system

LONG = 30.0


@dataclass
class Box:
    content: Any
    more: dict[str, Any] = field(default_factory=dict)


class Counter(Actor):
    def __init__(self, start: int) -> None:
        self.value = start
        self.log: list[int] = []

    @endpoint
    def add(self, by: int, *, times: int = 1) -> int:
        self.value += by * times
        return self.value

    @endpoint
    def append(self, entry: int) -> None:
        self.log.append(entry)

    @endpoint
    def entries(self) -> list[int]:
        return self.log

    @endpoint
    def where(self) -> tuple[dict[str, int], int, dict[str, int], str, str]:
        rank = current_rank()
        return dict(rank), rank.rank, current_size(), current_actor_name(), context().actor

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def double(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mul_(2)

    @endpoint
    def lock(self) -> Any:
        return {"deep": [1, threading.Lock()]}

    @endpoint
    def environment(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]

    @endpoint
    def threads(self) -> int:
        return torch.get_num_threads()

    @endpoint
    def matmul(self) -> float:
        return float((torch.ones(200, 200) @ torch.ones(200, 200)).sum())


class Mixed(Actor):
    def __init__(self) -> None:
        self.started: list[str] = []
        self.gate = threading.Event()

    @endpoint
    def block(self) -> bool:
        return self.gate.wait(LONG)

    @endpoint
    async def free(self) -> str:
        return "free"

    @endpoint
    async def open_gate(self) -> None:
        self.gate.set()

    @endpoint
    async def places(self) -> dict[str, int]:
        await asyncio.sleep(0)
        return dict(current_rank())


class Loop(Actor):
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.event = asyncio.Event()
        self.running = self.most = 0

    @endpoint
    async def in_turn(self) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        return self.most

    @concurrent_endpoint
    async def wait(self) -> str:
        await self.event.wait()
        return "woken"

    @concurrent_endpoint
    async def wake(self) -> None:
        self.event.set()


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    with this_host().spawn_procs({"procs": 3}) as mesh:
        yield mesh


@pytest.fixture
def counters(procs: ProcMesh) -> Iterator[ActorMesh[Counter]]:
    mesh = procs.spawn("counters", Counter, 0)
    yield mesh
    mesh.stop().get(LONG)


def test_every_verb_for_a_caller_that_waits(counters: ActorMesh[Counter]) -> None:
    assert counters.add.call(2, times=2).get(LONG).values() == [4, 4, 4]
    assert counters.slice(procs=2).add.call_one(1).get(LONG) == 5
    assert counters.add.broadcast(1).get(LONG) is None
    assert counters.slice(procs=0).add.choose(1).get(timeout=LONG) == 6
    assert sorted(future.get(LONG) for future in counters.add.stream(0)) == [5, 6, 6]


def test_every_verb_for_a_caller_that_awaits(counters: ActorMesh[Counter]) -> None:
    async def main() -> None:
        assert (await counters.add.call(2)).values() == [2, 2, 2]
        assert await counters.slice(procs=2).add.call_one(1) == 3
        assert await counters.add.broadcast(1) is None
        assert await counters.slice(procs=0).add.choose(1) == 4
        assert sorted([await future for future in counters.add.stream(0)]) == [3, 4, 4]
        # On a running loop the same futures can also be waited for.
        assert counters.add.call(0).get(LONG).item(procs=2) == 4
        answers = await asyncio.gather(*(counters.add.call(0) for _ in range(20)))
        assert {tuple(answer.values()) for answer in answers} == {(4, 3, 4)}

    asyncio.run(main())


def test_several_loops_and_threads_call_at_once(counters: ActorMesh[Counter]) -> None:
    async def awaiting() -> list[int]:
        return [(await counters.slice(procs=0).add.call_one(1)) for _ in range(50)]

    def waiting() -> list[int]:
        return [counters.slice(procs=0).add.call_one(1).get(LONG) for _ in range(50)]

    seen: list[list[int]] = []
    works = [lambda: seen.append(asyncio.run(awaiting())), lambda: seen.append(waiting())] * 2
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert sorted(value for values in seen for value in values) == list(range(1, 201))
    assert all(values == sorted(values) for values in seen)


def test_broadcasts_and_calls_run_in_order(counters: ActorMesh[Counter]) -> None:
    for entry in range(300):
        counters.append.broadcast(entry)
    assert counters.entries.call().get(LONG).values() == [list(range(300))] * 3


def test_endpoint_sees_full_coordinates_through_any_slice(counters: ActorMesh[Counter]) -> None:
    place = ({"hosts": 0, "procs": 2}, 2, {"hosts": 1, "procs": 3}, "counters", "counters")
    assert counters.slice(procs=2).where.call_one().get(LONG) == place
    assert counters.slice(procs=slice(1, 3)).slice(procs=1, hosts=0).where.call_one().get(LONG) == place
    assert [one.where.call_one().get(LONG)[1] for one in counters] == [0, 1, 2]


def test_controller_has_a_context_of_its_own() -> None:
    assert (context().actor, dict(current_rank())) == ("controller", {})


def test_choose_takes_the_least_loaded(procs: ProcMesh) -> None:
    mixed = procs.spawn("mixed", Mixed)
    busy = [mixed.slice(procs=rank).block.call_one() for rank in (0, 2)]
    assert [mixed.places.choose().get(LONG)["procs"] for _ in range(3)] == [1, 1, 1]
    mixed.open_gate.call().get(LONG)
    assert [future.get(LONG) for future in busy] == [True, True]


def test_choose_takes_turns_among_equals(counters: ActorMesh[Counter]) -> None:
    counters.initialized.get(LONG)  # a rank that still constructs is not the equal of one that is ready
    assert [counters.where.choose().get(LONG)[1] for _ in range(4)] == [0, 1, 2, 0]


def test_blocking_sync_endpoint_leaves_async_ones_free(procs: ProcMesh) -> None:
    mixed = procs.slice(procs=0).spawn("mixed", Mixed)
    blocked = mixed.block.call_one()
    assert mixed.free.call_one().get(LONG) == "free"
    assert not blocked.done()
    mixed.open_gate.call_one().get(LONG)
    assert blocked.get(LONG) is True


def test_async_endpoints_run_in_turn_unless_concurrent(procs: ProcMesh) -> None:
    loop = procs.slice(procs=0).spawn("loop", Loop)
    assert [future.get(LONG) for future in [loop.in_turn.call_one() for _ in range(4)]] == [1, 1, 1, 1]
    waiting = [loop.wait.call_one() for _ in range(2)]
    loop.wake.call_one().get(LONG)
    assert [future.get(LONG) for future in waiting] == ["woken", "woken"]


def test_two_actors_of_one_process_do_not_wait_for_each_other(procs: ProcMesh) -> None:
    first, second = (procs.slice(procs=0).spawn(name, Mixed) for name in ("first", "second"))
    blocked = first.block.call_one()
    assert second.free.call_one().get(LONG) == "free"
    first.open_gate.call_one().get(LONG)
    assert blocked.get(LONG)


def test_future_can_be_asked_again_after_a_timeout(procs: ProcMesh) -> None:
    mixed = procs.slice(procs=1).spawn("mixed", Mixed)
    blocked = mixed.block.call_one()
    with pytest.raises(CallTimeout, match=r"no answer from mixed\.block\.call_one after 0\.01 s"):
        blocked.get(timeout=0.01)
    assert not blocked.done()
    mixed.open_gate.call_one().get(LONG)
    assert blocked.get(LONG) is True
    assert blocked.done()
    assert blocked.exception() is None


def test_cancelled_future_raises_and_the_actor_goes_on(counters: ActorMesh[Counter]) -> None:
    future = counters.add.call(1)
    assert future.cancel()
    assert not future.cancel()
    with pytest.raises(CallCancelled, match=r"counters\.add\.call was cancelled"):
        future.get(LONG)
    assert counters.add.call(0).get(LONG).values() == [1, 1, 1]


# --- what is refused before anything is sent --------------------------------------------------------------------


def test_unknown_endpoint_names_the_nearest_and_all(counters: ActorMesh[Counter]) -> None:
    with pytest.raises(UnknownEndpoint, match=r"counters has no endpoint 'ad'; did you mean 'add'\? There are: add, "):
        _ = counters.ad


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"times": 2, "extra": 3}), ((1,), {"by": 1})]
)
def test_wrong_arguments_name_endpoint_and_signature(
    counters: ActorMesh[Counter], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(BadArguments, match=r"counters: add\(\).*signature is add\(by: 'int', \*, times: 'int' = 1\)"):
        counters.add.call(*args, **kwargs)


def test_direct_call_explains_the_verbs(counters: ActorMesh[Counter]) -> None:
    with pytest.raises(DirectCall, match=r"counters\.add runs in other processes; use a verb: \.call"):
        counters.add(1)


def test_call_one_on_several_ranks_says_what_to_do(counters: ActorMesh[Counter]) -> None:
    with pytest.raises(BadArguments, match=r"needs a mesh of one rank, this one is .*slice it to one rank, or"):
        counters.add.call_one(1)


def test_argument_that_cannot_travel_names_its_path(counters: ActorMesh[Counter]) -> None:
    path = r"counters\.echo\[1\]\[0\]\.content\['a'\]\[1\]"
    with pytest.raises(NotPicklable, match=path + " cannot travel: lock is not picklable"):
        counters.echo.call(Box({"a": [0, threading.Lock()]}))


def test_result_that_cannot_travel_names_its_path(counters: ActorMesh[Counter]) -> None:
    with pytest.raises(NotPicklable, match=r"the result of counters\['deep'\]\[1\] cannot travel: lock"):
        counters.slice(procs=0).lock.call_one().get(LONG)
    assert counters.slice(procs=0).add.call_one(1).get(LONG) == 1


def test_typed_access_is_the_same_endpoint(counters: ActorMesh[Counter]) -> None:
    assert counters[Counter.add].call(1).get(LONG).values() == [1, 1, 1]


# --- tensors ----------------------------------------------------------------------------------------------------

TENSORS = [
    torch.arange(6).reshape(2, 3).t(),
    torch.arange(300_000, dtype=torch.float64).reshape(500, 600)[::2, 1:],
    torch.tensor(3.5),
    torch.empty(0, 4),
    torch.ones(100_000, dtype=torch.bfloat16),
    torch.zeros(70_000, dtype=torch.bool),
    torch.randn(200, 200, dtype=torch.complex64).conj(),
    torch.eye(3).to_sparse(),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda t: f"{t.dtype}-{tuple(t.shape)}".removeprefix("torch."))
def test_tensors_travel_unchanged(counters: ActorMesh[Counter], tensor: torch.Tensor) -> None:
    back = counters.slice(procs=0).echo.call_one(Box((tensor,), {"again": [tensor]})).get(LONG)
    for received in (back.content[0], back.more["again"][0]):
        assert received.dtype == tensor.dtype
        assert torch.equal(received.to_dense(), tensor.to_dense())
    assert back.content[0] is back.more["again"][0]


def test_parameters_and_gradients_flags_travel(counters: ActorMesh[Counter]) -> None:
    parameter = torch.nn.Parameter(torch.ones(70_000))
    back = counters.slice(procs=0).echo.call_one([parameter, torch.ones(2, requires_grad=True)]).get(LONG)
    assert isinstance(back[0], torch.nn.Parameter)
    assert [tensor.requires_grad for tensor in back] == [True, True]


def test_received_tensor_is_the_receivers_own(counters: ActorMesh[Counter]) -> None:
    sent = torch.ones(1 << 20)
    doubled = counters.double.call(sent).get(LONG).values()
    assert all(bool((tensor == 2).all()) for tensor in doubled)
    doubled[0].zero_()
    assert bool((doubled[1] == 2).all())
    assert bool((sent == 1).all())


def test_sent_memory_may_be_reused_at_once(counters: ActorMesh[Counter]) -> None:
    one, tensor = counters.slice(procs=0), torch.zeros(1000)
    futures = []
    for step in range(300):
        tensor.fill_(step)
        futures.append(one.echo.call_one(tensor))
    assert [float(future.get(LONG)[0]) for future in futures] == [float(step) for step in range(300)]


# --- surroundings -----------------------------------------------------------------------------------------------


def test_ranks_environment_and_threads_are_set() -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OWN")
    host = this_host()
    with host.spawn_procs({"a": 2, "b": 2}, env=lambda point: {"OWN": f"{point['a']}{point['b']}"}, threads=3) as procs:
        mesh = procs.spawn("counter", Counter, 0)
        seen = mesh.environment.call(*names).get(LONG).values()
        assert seen == [[str(rank), str(rank), "4", own] for rank, own in enumerate(("00", "01", "10", "11"))]
        assert mesh.threads.call().get(LONG).values() == [3] * 4


def test_default_threads_share_the_cores() -> None:
    count = max(1, (os.cpu_count() or 1) // 2)
    with this_host().spawn_procs({"procs": 2}, env={"OMP_NUM_THREADS": str(count)}) as procs:
        assert procs.spawn("counter", Counter, 0).threads.call().get(LONG).values() == [count, count]


def test_controller_that_has_computed_spawns_actors_that_compute(counters: ActorMesh[Counter]) -> None:
    assert float((torch.ones(300, 300) @ torch.ones(300, 300)).sum()) == 300.0**3
    with this_host().spawn_procs({"procs": 2}) as procs:
        assert procs.spawn("counter", Counter, 0).matmul.call().get(LONG).values() == [200.0**3] * 2
