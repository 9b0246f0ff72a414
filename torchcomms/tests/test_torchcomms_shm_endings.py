"""How operations of shm end badly: mismatches, lateness, signals, deaths, forks; and what is left behind."""

import gc
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

from torchcomms.backend import ReduceOp
from torchcomms.errors import CollectiveMismatch, CommsAborted, CommsClosed, CommsTimeout, PeerFailed
from torchcomms.providers.shm import ShmBackend, ShmOptions, native
from torchcomms.testing import ThreadWorld

pytestmark = pytest.mark.skipif(native.load().core is None, reason=f"no core: {native.load().how}")
SUM, LONG = ReduceOp.SUM, 300_000


@pytest.fixture
def three():
    opened = ThreadWorld(ShmBackend, 3, options=ShmOptions(native=True))
    yield opened
    opened.close()


def all_reduce(count, dtype=torch.float32, op=SUM):
    return lambda backend: backend.all_reduce(torch.ones(count, dtype=dtype), op).wait()


def express(count, op=SUM):
    return lambda backend: backend.express.all_reduce(torch.ones(count), op)


def swapped(backend):
    tickets = [backend.barrier(), backend.broadcast(torch.ones(2), 0)]
    for ticket in tickets:
        ticket.wait()


def straight(backend):
    tickets = [backend.broadcast(torch.ones(2), 0), backend.barrier()]
    for ticket in tickets:
        ticket.wait()


def gathered(lengths):
    def run(backend):
        tensors = [torch.ones(length) for length in lengths]
        backend.all_gather(tensors, tensors[backend.rank].clone()).wait()

    return run


MISMATCHES = {
    "length": (all_reduce(4), all_reduce(5), "4 elements", "5 elements"),
    "length of a long one": (express(LONG), express(LONG + 1), "300000 elements", "300001 elements"),
    "dtype": (all_reduce(4), all_reduce(4, torch.int32), "float32", "int32"),
    "reduction": (express(4), express(4, ReduceOp.PRODUCT), "sum", "product"),
    "factor": (all_reduce(4, op=ReduceOp.PREMUL_SUM(0.5)), all_reduce(4, op=ReduceOp.PREMUL_SUM(0.25)), "0.5", "0.25"),
    "operation": (express(4), lambda backend: backend.express.barrier(), "all_reduce(#1", "barrier(#1"),
    "root": (
        lambda backend: backend.broadcast(torch.ones(4), 0).wait(),
        lambda backend: backend.express.broadcast(torch.ones(4), 1),
        "root 0",
        "root 1",
    ),
    "order": (swapped, straight, "barrier(#1", "broadcast(#1"),
    "lengths of a list": (gathered([1, 2, 3]), gathered([1, 2, 4]), "lengths", "lengths"),
    "folded by torch": (
        all_reduce(4, torch.complex64),
        all_reduce(4, torch.complex64, ReduceOp.PRODUCT),
        "sum",
        "product",
    ),
}


@pytest.mark.unit
@pytest.mark.parametrize(("one", "other", "first", "second"), MISMATCHES.values(), ids=list(MISMATCHES))
def test_a_mismatch_is_told_alike_on_all_ranks(three, one, other, first, second):
    seen = three.run(lambda backend: (other if backend.rank == 1 else one)(backend))
    assert all(isinstance(error, CollectiveMismatch) for error in seen), seen
    assert len({str(error) for error in seen}) == 1
    text = str(seen[0])
    assert "ranks 0, 2 called" in text
    assert "rank 1 called" in text
    assert first in text
    assert second in text
    assert text.count("test_torchcomms_shm_endings.py:") == 2
    assert set(seen[0].calls) == {0, 1, 2}


@pytest.mark.unit
def test_after_a_mismatch_tensors_are_untouched_and_the_ranks_in_step(three):
    def run(backend):
        tensor = torch.ones(LONG + backend.rank % 2)
        with pytest.raises(CollectiveMismatch):
            backend.express.all_reduce(tensor, SUM)
        assert float(tensor.min()) == float(tensor.max()) == 1.0
        backend.all_reduce(tensor[:5], SUM).wait()
        return tensor[:6].tolist()

    assert three.run(run) == [[3.0] * 5 + [1.0]] * 3


@pytest.mark.unit
def test_who_is_late_is_named_and_where_the_others_wait_and_the_operation_goes_on_later(three):
    come = threading.Event()
    both = threading.Barrier(2, action=come.set)

    def run(backend):
        tensor = torch.ones(5)
        if backend.rank == 1:
            come.wait(20)
            backend.all_reduce(tensor, SUM).wait()
            return tensor.tolist()
        ticket = backend.all_reduce(tensor, SUM)
        with pytest.raises(CommsTimeout) as caught:
            ticket.wait_host(time.monotonic() + 0.15)
        both.wait(20)
        assert float(tensor.max()) == 1.0
        ticket.wait_host(time.monotonic() + 20)
        assert caught.value.missing == {1}
        return tensor.tolist(), sorted(caught.value.calls), str(caught.value)

    first, late, _ = three.run(run)
    assert late == [3.0] * 5
    assert first[0] == [3.0] * 5
    assert "rank 1 did not come to all_reduce(#1, sum, float32, 5 elements)" in first[2]
    assert "test_torchcomms_shm_endings.py:" in first[2]
    assert 0 in first[1]


@pytest.mark.unit
def test_an_abort_ends_waits_in_other_threads_and_the_express_lane(three):
    backend = three.backends[0]
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(backend.express.barrier), threads.submit(lambda: backend.barrier().wait())]
        while not backend.queue.pending:
            continue
        started = time.monotonic()
        backend.abort("enough")
        for wait in waits:
            with pytest.raises(CommsAborted, match="enough"):
                wait.result(20)
    assert time.monotonic() - started < 5
    assert not backend.express.barrier()
    with pytest.raises(CommsAborted):
        backend.barrier()


@pytest.mark.unit
def test_a_rank_that_left_is_named_by_who_still_needs_it(three):
    three.backends[1].close()
    with pytest.raises(PeerFailed, match="rank 1 closed") as caught:
        three.backends[0].express.all_reduce(torch.ones(3), SUM)
    assert caught.value.ranks == {1}
    assert three.backends[0].lost() == frozenset()


@pytest.mark.unit
def test_a_signal_interrupts_a_wait(three):
    class Rang(Exception):
        pass

    def ring(number, frame):
        raise Rang

    before = signal.signal(signal.SIGALRM, ring)
    started = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Rang):
            three.backends[0].express.barrier()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started < 5


@pytest.mark.unit
def test_waiting_for_a_late_rank_costs_next_to_no_processor_time(three):
    def wait(backend):
        if backend.rank == 0:
            time.sleep(1.0)
        before = time.thread_time()
        backend.express.barrier()
        return time.thread_time() - before

    assert max(three.run(wait)) < 0.1


def left_behind():
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:torchcomms" in line]
    return len(os.listdir("/proc/self/fd")), len(maps), threading.active_count()


@pytest.mark.unit
def test_a_hundred_groups_leave_nothing():
    store = HashStore()

    def live(rank):
        opened = ShmBackend.open(rank=rank, size=2, store=store, device="cpu", timeout=20.0)
        tensor = opened.empty((100,), torch.float32).fill_(1.0)
        opened.all_reduce(tensor, SUM).wait()
        opened.close()
        return float(tensor.sum())

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(live, range(2)))
        gc.collect()
        before = left_behind()
        for _ in range(100):
            assert list(threads.map(live, range(2))) == [200.0] * 2
        gc.collect()
        assert left_behind() == before


@pytest.mark.unit
def test_a_group_that_is_dropped_leaves_nothing():
    before = left_behind()
    opened = ShmBackend.open(rank=0, size=1, store=HashStore(), device="cpu", timeout=5.0)
    opened.barrier().wait()
    del opened
    gc.collect()
    assert left_behind() == before


VICTIM = """
import os, sys, time
import torch
from torchcomms.backend import ReduceOp
from torchcomms.bootstrap import meeting_place
from torchcomms.errors import PeerFailed
from torchcomms.providers.shm import ShmBackend
from datetime import timedelta
torch.set_num_threads(1)
rank, size, store = meeting_place("victim", None, None, None, timedelta(seconds=60))
backend = ShmBackend.open(rank=rank, size=size, store=store, device="cpu", timeout=60.0)
tensor = torch.empty(2 << 20)
backend.barrier().wait()
print("ready", flush=True)
try:
    while True:
        tensor.fill_(1.0)
        backend.express.all_reduce(tensor, ReduceOp.SUM)
except PeerFailed as error:
    now, low, high = time.time(), float(tensor.min()), float(tensor.max())
    print("failed", sorted(error.ranks), now, low == high and low in (1.0, 4.0), flush=True)
backend.close()
print("maps", "memfd:torchcomms" in open("/proc/self/maps").read(), flush=True)
sys.stdin.read()
"""


@pytest.mark.system
def test_a_killed_rank_is_named_by_all_at_once_and_no_tensor_is_left_half_reduced(ranks, tmp_path):
    script = tmp_path / "victim.py"
    script.write_text(VICTIM)
    group = ranks(4, script)
    assert [rank.stdout.readline() for rank in group] == ["ready\n"] * 4
    killed = time.time()
    group[2].kill()
    for survivor in (0, 1, 3):
        word, names, moment, whole = group[survivor].stdout.readline().split()
        assert (word, names, whole) == ("failed", "[2]", "True")
        assert float(moment) - killed < 1.0
        assert group[survivor].stdout.readline() == "maps False\n"


FORK = """
import os, torch, torchcomms
from torchcomms.errors import CommsClosed
torch.set_num_threads(1)
comm = torchcomms.new_comm("shm", "cpu", name="fork")
kept = comm._group.backend.empty((3,), torch.float32).fill_(7.0) if hasattr(comm, "_group") else torch.ones(3)
comm.all_reduce(torch.ones(3), torchcomms.ReduceOp.SUM)
child = os.fork()
if not child:
    refused = 1
    try:
        comm.barrier()
    except CommsClosed as error:
        refused = 0 if str(os.getppid()) in str(error) and kept.sum() > 0 else 2
    comm.finalize()
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
total = torch.ones(100_000)
comm.all_reduce(total, torchcomms.ReduceOp.SUM)
print("sum", total.mean().item())
comm.finalize()
"""


@pytest.mark.system
def test_a_forked_child_is_refused_and_its_parent_unharmed(ranks, tmp_path):
    script = tmp_path / "fork.py"
    script.write_text(FORK)
    for rank in ranks(2, script):
        written, errors = rank.communicate()
        assert rank.returncode == 0, errors
        assert written == "sum 2.0\n"


STRESS = """
import random, sys, torch
from torchcomms.backend import ReduceOp
from torchcomms.bootstrap import meeting_place
from torchcomms.errors import CollectiveMismatch
from torchcomms.providers.shm import ShmBackend
from datetime import timedelta
torch.set_num_threads(1)
rank, size, store = meeting_place("stress", None, None, None, timedelta(seconds=60))
backend = ShmBackend.open(rank=rank, size=size, store=store, device="cpu", timeout=60.0)
chance = random.Random(7)
for step in range(1500):
    count = chance.choice([0, 1, 3, 8, 9, 500, 4096, 4097, 100_000])
    what, odd, root = chance.randrange(7), chance.randrange(40), chance.randrange(size)
    tensor = torch.full((count,), float(rank + step % 5))
    total = float(sum(range(size)) + size * (step % 5))
    if odd == 0:
        try:
            backend.all_reduce(torch.ones(count + (rank == root)), ReduceOp.SUM).wait()
            sys.exit(f"no mismatch in step {step}")
        except CollectiveMismatch:
            continue
    if what == 0:
        assert backend.express.all_reduce(tensor, ReduceOp.SUM)
        assert (tensor == total).all(), step
    elif what == 1:
        assert backend.express.broadcast(tensor, root)
        assert (tensor == root + step % 5).all(), step
    elif what == 2:
        assert backend.express.barrier()
    elif what == 3:
        outputs = [torch.empty(count) for _ in range(size)]
        backend.all_gather(outputs, tensor).wait()
        assert all((one == other + step % 5).all() for other, one in enumerate(outputs)), step
    elif what == 4:
        part = torch.empty(count)
        backend.reduce_scatter(part, [tensor] * size, ReduceOp.SUM).wait()
        assert (part == total).all(), step
    elif what == 5:
        tickets = [backend.all_reduce(tensor, ReduceOp.MAX), backend.barrier()]
        tickets[step % 2].wait()
        tickets[1 - step % 2].wait()
        assert (tensor == size - 1 + step % 5).all(), step
    else:
        received = [torch.empty(count) for _ in range(size)]
        backend.all_to_all(received, [tensor] * size).wait()
        assert all((one == other + step % 5).all() for other, one in enumerate(received)), step
backend.close()
print("done")
"""


@pytest.mark.system
@pytest.mark.parametrize("size", [2, 4])
def test_a_long_random_run_of_everything_between_processes(ranks, tmp_path, size):
    script = tmp_path / "stress.py"
    script.write_text(STRESS)
    for rank in ranks(size, script):
        written, errors = rank.communicate()
        assert written == "done\n", errors


@pytest.mark.unit
def test_close_while_another_thread_waits_and_again(three):
    backend = three.backends[0]
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(backend.express.barrier)
        while not backend.queue.pending:
            continue
        backend.close()
        with pytest.raises(CommsClosed):
            waiting.result(20)
    backend.close()
    with pytest.raises(CommsClosed):
        backend.barrier()
    assert not backend.express.all_reduce(torch.ones(1), SUM)
