"""Operations that go on by themselves, deadlines and what they tell, threads that share a communicator, staging."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

import torchcomms
from torchcomms import CollectiveMismatch, CommsTimeout, PeerFailed, ReduceOp, WorkStatus
from torchcomms.algorithms import reducing
from torchcomms.comm import staging
from torchcomms.errors import CommsAborted

pytestmark = pytest.mark.unit
LONG = 20_000


def eventually(condition, seconds=10.0):
    """Whether the condition comes true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
    return True


def progress_threads():
    return [thread for thread in threading.enumerate() if thread.name == "torchcomms progress"]


def test_collectives_of_many_rounds_go_on_while_nobody_waits(world, backend):
    done = threading.Barrier(3)

    def run(comm):
        tensors = [torch.full((LONG,), float(step)) for step in range(5)]
        works = [comm.all_reduce(tensor, ReduceOp.SUM, True) for tensor in tensors]
        assert eventually(lambda: all(work.status is WorkStatus.COMPLETED for work in works))
        done.wait(20)
        return [tensor.mean().item() for tensor in tensors]

    assert world(backend, 3, run) == [[3.0 * step for step in range(5)]] * 3


def test_messages_and_collectives_in_flight_do_not_hold_each_other_up(world, backend):
    def run(comm):
        peer, received, total = 1 - comm.get_rank(), torch.empty(LONG), torch.ones(LONG)
        waiting = comm.recv(received, peer, True)
        work = comm.all_reduce(total, ReduceOp.SUM, True)
        assert eventually(lambda: work.status is WorkStatus.COMPLETED)
        assert waiting.status is WorkStatus.INPROGRESS
        both.wait(20)
        comm.send(torch.full((LONG,), 5.0), peer)
        assert eventually(lambda: waiting.status is WorkStatus.COMPLETED)
        return total.mean().item(), received.mean().item()

    both = threading.Barrier(2)
    assert world(backend, 2, run) == [(2.0, 5.0)] * 2


def test_the_thread_starts_with_the_first_asynchronous_operation_and_ends_with_the_communicator(world, backend):
    before = len(progress_threads())
    both = threading.Barrier(2)

    def run(comm):
        comm.barrier()
        both.wait(20)
        assert len(progress_threads()) == before
        both.wait(20)
        waiting = comm.recv(torch.empty(1), 1 - comm.get_rank(), True)
        assert len(progress_threads()) > before
        both.wait(20)
        comm.send(torch.ones(1), 1 - comm.get_rank())
        waiting.wait()

    world(backend, 2, run)
    assert len(progress_threads()) == before


def test_a_dropped_communicator_leaves_no_thread(world):
    before = len(progress_threads())
    world("inproc", 2, lambda comm: comm.split([0, 1], "dropped").barrier(True).wait())
    assert eventually(lambda: len(progress_threads()) == before)


def test_a_timeout_says_where_the_others_wait(outcomes):
    done = threading.Barrier(3)

    def run(comm):
        try:
            if comm.get_rank() == 0:
                comm.broadcast(torch.ones(3), 1, False, timeout=timedelta(seconds=0.3))
            if comm.get_rank() == 1:
                comm.all_reduce(torch.ones(4), ReduceOp.SUM, timeout=timedelta(seconds=0.3))
        finally:
            done.wait(20)

    for backend in ("inproc", "tcp"):
        first, second, _ = outcomes(backend, 3, run)
        assert isinstance(first, CommsTimeout)
        assert first.missing == second.missing == {2}
        assert "broadcast(#1, float32, 3 elements, root 1) at test_torchcomms_progress.py" in str(first)
        assert "rank 1 waits in all_reduce(#1, sum, float32, 4 elements) at test_torchcomms_progress.py" in str(first)
        assert "rank 0 waits in broadcast" in str(second)
        assert sorted(first.calls) == [0, 1]


def test_a_call_has_its_own_deadline_and_may_be_waited_again(world, backend):
    late = threading.Event()

    def run(comm):
        tensor = torch.ones(LONG)
        if comm.get_rank() == 1:
            assert late.wait(20)
            comm.all_reduce(tensor, ReduceOp.SUM)
            return tensor.mean().item()
        started = time.monotonic()
        work = comm.all_reduce(tensor, ReduceOp.SUM, True, timeout=timedelta(seconds=0.1))
        with pytest.raises(CommsTimeout):
            work.wait(timedelta(seconds=0.01))
        with pytest.raises(CommsTimeout):
            work.wait()
        assert work.status is WorkStatus.TIMEDOUT
        assert time.monotonic() - started < 10
        assert tensor.mean().item() == 1.0
        late.set()
        work.wait(20)
        assert (work.status, work.is_completed()) == (WorkStatus.COMPLETED, True)
        return tensor.mean().item()

    assert world(backend, 2, run) == [2.0, 2.0]


def test_a_new_timeout_holds_in_the_fast_lane_too(outcomes, backend):
    done = threading.Barrier(2)

    def run(comm):
        comm.set_timeout(timedelta(seconds=0.1))
        try:
            if comm.get_rank() == 0:
                comm.barrier()
        finally:
            done.wait(20)

    started = time.monotonic()
    assert isinstance(outcomes(backend, 2, run)[0], CommsTimeout)
    assert time.monotonic() - started < 15


def test_threads_of_a_rank_share_a_communicator(world, backend):
    def run(comm):
        peer = 1 - comm.get_rank()

        def messages(tag):
            for step in range(20):
                received = torch.empty(100)
                pending = comm.send(torch.full((100,), tag + step / 100), peer, True, tag=tag)
                comm.recv(received, peer, tag=tag)
                pending.wait()
                assert torch.equal(received, torch.full((100,), tag + step / 100))

        def collectives(_):
            for step in range(20):
                tensor = torch.full((300,), float(step))
                comm.all_reduce(tensor, ReduceOp.SUM, step % 2 == 1).wait()
                assert tensor.unique().tolist() == [2.0 * step]

        with ThreadPoolExecutor(4) as threads:
            return list(threads.map(lambda number: [messages, collectives][number == 3](number), range(4)))

    world(backend, 2, run)


@pytest.mark.parametrize("how", ["death", "mismatch", "timeout"])
@pytest.mark.parametrize("count", [4, LONG])
def test_what_a_reduction_in_place_did_not_finish_it_did_not_touch(outcomes, backend, how, count, monkeypatch):
    monkeypatch.setattr(staging, "LONG", 16_000)
    done = threading.Barrier(3)

    def run(comm):
        tensor = torch.full((count,), comm.get_rank() + 1.0)
        try:
            if comm.get_rank() == 2 and how == "death":
                comm.unsafe_get_backend().sever()
            elif comm.get_rank() == 2 and how == "timeout":
                return tensor
            op = ReduceOp.PRODUCT if how == "mismatch" and comm.get_rank() == 2 else ReduceOp.SUM
            with pytest.raises((PeerFailed, CollectiveMismatch, CommsTimeout, torchcomms.CommsClosed)):
                comm.all_reduce(tensor, op, timeout=timedelta(seconds=0.3 if how == "timeout" else 20))
        finally:
            done.wait(20)
        return tensor

    for rank, tensor in enumerate(outcomes(backend, 3, run)):
        assert torch.equal(tensor, torch.full((count,), rank + 1.0))


@pytest.mark.parametrize("dense", [True, False])
def test_long_reductions_go_in_pieces_each_whole(world, monkeypatch, dense):
    monkeypatch.setattr(staging, "LONG", 16_000)
    monkeypatch.setattr(reducing, "STAGED", 16_000)

    def run(comm):
        # One rank's tensor is strided and the other's is not: the pieces are the same.
        whole = torch.arange(LONG * 2.0).view(LONG, 2)
        tensor = whole[:, 0] if comm.get_rank() or not dense else whole[:, 0].contiguous()
        comm.all_reduce(tensor, ReduceOp.SUM)
        comm.reduce(tensor, 1, ReduceOp.SUM)
        return torch.equal(tensor, torch.arange(0.0, LONG * 2, 2) * (2 + 2 * comm.get_rank()))

    assert world("tcp", 2, run) == [True, True]


def test_waiting_costs_no_processor(world):
    def run(comm):
        if comm.get_rank() == 0:
            work = comm.recv(torch.empty(1), 1, True)
            before = time.process_time()
            with pytest.raises(CommsTimeout):
                work.wait(1.0)
            spent = time.process_time() - before
            ready.set()
            work.wait()
            return spent
        assert ready.wait(20)
        comm.send(torch.ones(1), 0)
        return 0.0

    ready = threading.Event()
    assert max(world("tcp", 2, run)) < 0.2


def test_a_failed_communicator_says_what_to_do(outcomes, backend):
    def run(comm):
        with pytest.raises(CollectiveMismatch):
            comm.barrier() if comm.get_rank() else comm.broadcast(torch.ones(1), 0)
        comm.broadcast(torch.ones(1), 0)

    for outcome in outcomes(backend, 2, run):
        assert isinstance(outcome, CommsAborted)
        assert "reconfigure it or make a new one" in str(outcome)


def test_a_rank_with_something_pending_meets_those_in_the_fast_lane(world, backend):
    def run(comm):
        late = comm.get_rank() == 0
        for _ in range(3):
            moved, total = torch.full((LONG,), float(comm.get_rank())), torch.ones(4)
            work = comm.broadcast(moved, 1, True)
            if not late:
                work.wait()
            comm.barrier()
            comm.all_reduce(total, ReduceOp.SUM)
            work.wait()
            assert (moved.mean().item(), total.tolist()) == (1.0, [3.0] * 4)

    world(backend, 3, run)
