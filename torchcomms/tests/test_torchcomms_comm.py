"""The communicator on every backend here: layouts, dtypes, sizes, mismatches, timeouts, the algebra of reductions."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore

import torchcomms
from torchcomms import CollectiveMismatch, CommsAborted, CommsClosed, CommsTimeout, PeerFailed, ReduceOp
from torchcomms.errors import InvalidCall, NoRendezvous, UnsupportedReduction, UnsupportedTensor

pytestmark = pytest.mark.unit
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
LONG = 20_000


def test_a_communicator_knows_who_it_is(world, backend):
    def ask(comm):
        return comm.get_rank(), comm.get_size(), comm.get_backend(), comm.get_name(), comm.get_device().type

    assert world(backend, 2, ask) == [(rank, 2, backend, "test", "cpu") for rank in range(2)]


@pytest.mark.parametrize("count", [6, LONG])
@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "reduce", "send", "all_gather", "reduce_scatter"])
def test_strided_tensors_come_out_right_and_only_their_own_elements_are_written(world, backend, operation, count):
    def column(value):
        whole = torch.full((count, 3), -1.0)
        whole[:, 1] = value
        return whole, whole[:, 1]

    def run(comm):
        rank = comm.get_rank()
        whole, mine = column(rank + 1.0)
        if operation == "all_reduce":
            comm.all_reduce(mine, ReduceOp.SUM)
        elif operation == "broadcast":
            comm.broadcast(mine, 1)
        elif operation == "reduce":
            comm.reduce(mine, 0, ReduceOp.SUM)
        elif operation == "send":
            comm.send(mine, 0) if rank else comm.recv(mine, 1)
        elif operation == "all_gather":
            other, target = column(0.0)
            comm.all_gather([target, torch.empty(count)] if rank else [torch.empty(count), target], mine)
            whole = other
        else:
            comm.reduce_scatter(mine, [torch.ones(2, count)[0] * 2, torch.ones(count)], ReduceOp.SUM)
        return whole

    wanted = {
        "all_reduce": (3, 3),
        "broadcast": (2, 2),
        "reduce": (3, 2),
        "send": (2, 2),
        "all_gather": (2, 1),
        "reduce_scatter": (4, 2),
    }[operation]
    for whole, value in zip(world(backend, 2, run), wanted, strict=True):
        assert bool((whole[:, 1] == value).all())
        assert bool((whole[:, ::2] == -1).all())


def test_lazily_conjugated_tensors_are_what_they_mean(world, backend):
    def run(comm):
        tensor = torch.tensor([1 + 2j, 3 - 1j]).conj()
        comm.all_reduce(tensor, ReduceOp.SUM)
        return tensor.resolve_conj()

    assert all(torch.equal(seen, torch.tensor([2 - 4j, 6 + 2j])) for seen in world(backend, 2, run))


CALLS = {
    "lengths": (lambda c, r: c.all_reduce(torch.ones(4 + 4 * r), ReduceOp.SUM), "4 elements"),
    "long lengths": (lambda c, r: c.all_reduce(torch.ones(LONG + r), ReduceOp.SUM), "20000 elements"),
    "operations": (
        lambda c, r: c.broadcast(torch.ones(4), 0) if r else c.all_reduce(torch.ones(4), ReduceOp.SUM),
        "broadcast",
    ),
    "dtypes": (lambda c, r: c.broadcast(torch.ones(4, dtype=[torch.int32, torch.float32][r]), 0), "int32"),
    "roots": (lambda c, r: c.broadcast(torch.ones(4), r), "root 1"),
    "reductions": (lambda c, r: c.all_reduce(torch.ones(4), [ReduceOp.SUM, ReduceOp.PRODUCT][r]), "product"),
    "lists": (lambda c, r: c.all_gather([torch.ones(2), torch.ones(2 + r)], torch.ones(2 + r)), "lengths"),
    "order": (
        lambda c, r: [c.all_reduce(torch.ones(4 if step == r else 5), ReduceOp.SUM) for step in range(2)],
        "#1",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_ranks_that_call_differently_all_learn_who_called_what(outcomes, backend, case):
    call, word = CALLS[case]
    for outcome in outcomes(backend, 2, lambda comm: call(comm, comm.get_rank())):
        assert isinstance(outcome, CollectiveMismatch)
        assert set(outcome.calls) == {0, 1}
        assert word in str(outcome)
        assert "test_torchcomms_comm.py:" in str(outcome)


def test_a_mismatch_names_both_groups_of_ranks_and_ends_the_communicator(world):
    def run(comm):
        with pytest.raises(CollectiveMismatch, match=r"rank 0 called broadcast.*ranks 1, 2 called barrier"):
            comm.barrier() if comm.get_rank() else comm.broadcast(torch.ones(1), 0)
        with pytest.raises(CommsAborted, match="no more use"):
            comm.barrier()

    world("tcp", 3, run)


def test_a_rank_that_never_comes_is_named_with_the_call_that_waits_for_it(outcomes, backend):
    done = threading.Barrier(3)

    def run(comm):
        try:
            if comm.get_rank() != 2:
                comm.all_reduce(torch.ones(4), ReduceOp.SUM, async_op=True).wait(0.1)
        finally:
            done.wait(20)

    for outcome in outcomes(backend, 3, run)[:2]:
        assert isinstance(outcome, CommsTimeout)
        assert outcome.missing == {2}
        assert "all_reduce(#1, sum, float32, 4 elements) at test_torchcomms_comm.py" in str(outcome)


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.bool, *FLOAT8])
def test_rare_dtypes_move_and_reduce(world, backend, dtype):
    def run(comm):
        tensor = torch.tensor([comm.get_rank(), 1, 0, 1]).to(dtype)
        comm.all_reduce(tensor, ReduceOp.SUM)
        moved = torch.tensor([0, 1, 1]).to(dtype) if comm.get_rank() == 1 else torch.zeros(3).to(dtype)
        comm.broadcast(moved, 1)
        return tensor, moved

    total = [1, 1, 0, 1] if dtype is torch.bool else [1, 2, 0, 2]
    for tensor, moved in world(backend, 2, run):
        assert tensor.to(torch.float64).tolist() == total
        assert moved.to(torch.float64).tolist() == [0, 1, 1]


def test_a_bool_never_becomes_a_byte_of_two(world, backend):
    def run(comm):
        tensor = torch.ones(3, dtype=torch.bool)
        comm.all_reduce(tensor, ReduceOp.SUM)
        return tensor.view(torch.uint8).tolist()

    assert world(backend, 3, run) == [[1, 1, 1]] * 3


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        (torch.bool, ReduceOp.AVG),
        (torch.float32, ReduceOp.BAND),
        (torch.complex64, ReduceOp.MAX),
        (torch.int32, ReduceOp.PREMUL_SUM(0.5)),
    ],
)
def test_a_reduction_without_a_meaning_is_refused_before_anything_is_sent(world, dtype, op):
    def run(comm):
        with pytest.raises(UnsupportedReduction, match=f"{op.kind} has no meaning for {dtype}: choose one of"):
            comm.all_reduce(torch.ones(2, dtype=dtype), op)
        comm.barrier()

    world("inproc", 2, run)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint64])
def test_integer_average_rounds_toward_zero_and_does_not_overflow(world, backend, dtype):
    def run(comm):
        top = torch.iinfo(torch.uint8 if dtype == torch.uint8 else torch.int8).max
        values = [top, top - comm.get_rank(), 3 + comm.get_rank()]
        signed = [] if dtype in (torch.uint8, torch.uint16, torch.uint64) else [-3 - comm.get_rank()]
        tensor = torch.tensor(values + signed).to(dtype)
        comm.all_reduce(tensor, ReduceOp.AVG)
        return [int(value) for value in tensor.tolist()]

    top = 255 if dtype == torch.uint8 else 127
    signed = [] if dtype in (torch.uint8, torch.uint16, torch.uint64) else [-3]
    assert world(backend, 2, run) == [[top, (2 * top - 1) // 2, 3, *signed]] * 2


def test_premultiplied_sums(world, backend):
    def run(comm):
        tensor = torch.full((3,), comm.get_rank() + 1.0)
        comm.all_reduce(tensor, ReduceOp.PREMUL_SUM(0.5))
        return tensor.tolist()

    assert world(backend, 2, run) == [[1.5] * 3] * 2


def test_empty_and_uneven_tensors(world, backend):
    def run(comm):
        rank = comm.get_rank()
        empty = torch.empty(1, 0, 2)
        comm.all_reduce(empty, ReduceOp.SUM)
        comm.broadcast(empty, 0)
        outputs = [torch.zeros(count, 2) for count in (0, 3)]
        comm.all_gather(outputs, torch.full((3 * rank, 2), 7.0))
        scattered = torch.empty(3 * rank)
        comm.reduce_scatter(scattered, [torch.empty(0), torch.ones(3)], ReduceOp.SUM)
        swapped = [torch.zeros(rank), torch.zeros(1 + rank)]
        comm.all_to_all(swapped, [torch.ones(rank), torch.ones(1 + rank)])
        return outputs[1].mean().item(), scattered.tolist(), sum(int(part.sum()) for part in swapped)

    assert world(backend, 2, run) == [(7.0, [], 1), (7.0, [2.0] * 3, 3)]


def test_a_message_between_two_then_a_barrier_of_all(world, backend):
    def run(comm):
        tensor = torch.full((LONG,), 5.0)
        if comm.get_rank() < 2:
            comm.send(tensor, 1) if comm.get_rank() == 0 else comm.recv(tensor.zero_(), 0)
        comm.barrier()
        return tensor.mean().item()

    assert world(backend, 3, run) == [5.0] * 3


def test_a_rank_may_wait_for_a_message_while_its_sender_waits_for_the_collective_first(world, backend):
    def run(comm):
        total, tensor = torch.ones(LONG), torch.full((LONG,), float(comm.get_rank()))
        pending = comm.all_reduce(total, ReduceOp.SUM, async_op=True)
        if comm.get_rank() == 0:
            comm.recv(tensor, 1)
            pending.wait()
        else:
            pending.wait()
            comm.send(tensor, 0)
        assert pending.is_completed()
        return total.mean().item(), tensor.mean().item()

    assert world(backend, 2, run) == [(2.0, 1.0)] * 2


def test_two_threads_of_a_rank_on_two_communicators(world, backend):
    def run(comm):
        def many(each):
            for step in range(20):
                tensor = torch.full((300,), float(step))
                each.all_reduce(tensor, ReduceOp.SUM)
                assert tensor.tolist() == [2.0 * step] * 300

        where = {"store": second, "rank": comm.get_rank(), "size": 2}
        with torchcomms.new_comm(backend, "cpu", name="other", **where) as other, ThreadPoolExecutor(2) as threads:
            return len(list(threads.map(many, [comm, other])))

    second = HashStore()
    assert world(backend, 2, run) == [2, 2]


def test_a_peer_that_dies_is_named_and_the_communicator_stays_ended(world, backend):
    def run(comm):
        if comm.get_rank() == 1:
            comm._backend.sever()
            return
        with pytest.raises(PeerFailed) as caught:
            comm.all_reduce(torch.ones(LONG), ReduceOp.SUM)
        assert caught.value.ranks == {1}
        with pytest.raises(PeerFailed, match="has lost ranks"):
            comm.barrier()

    world(backend, 3, run)


def test_abort_and_finalize_end_waits(world, backend):
    both = threading.Barrier(2)

    def run(comm):
        waiting = comm.recv(torch.ones(1), 1 - comm.get_rank(), async_op=True)
        comm.abort("enough")
        with pytest.raises(CommsAborted, match="enough"):
            waiting.wait()
        both.wait(20)
        comm.finalize()
        comm.finalize()
        with pytest.raises(CommsClosed):
            comm.barrier()

    world(backend, 2, run)


def test_what_cannot_be_moved_or_written_is_refused_with_the_cure(world):
    def run(comm):
        with pytest.raises(InvalidCall, match=r"expanded tensor.*pass a clone"):
            comm.all_reduce(torch.ones(1).expand(4), ReduceOp.SUM)
        with pytest.raises(UnsupportedTensor, match="densify"):
            comm.broadcast(torch.eye(2).to_sparse(), 0)
        with pytest.raises(UnsupportedTensor, match="meta"):
            comm.broadcast(torch.empty(2, device="meta"), 0)
        with pytest.raises(InvalidCall, match="root 5"):
            comm.broadcast(torch.ones(2), 5)
        with pytest.raises(InvalidCall, match="list of 1 tensors"):
            comm.all_gather([], torch.ones(2))
        with pytest.raises(InvalidCall, match="peer 3"):
            comm.send(torch.ones(2), 3)

    world("inproc", 1, run)


def test_without_a_meeting_place_the_variables_are_named(monkeypatch):
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(NoRendezvous, match="torchcomms run") as caught:
        torchcomms.new_comm("tcp", "cpu", name="lost")
    assert caught.value.variables == ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    with pytest.raises(InvalidCall, match="rank 2 is not in a group of 2"):
        torchcomms.new_comm("tcp", "cpu", name="lost", store=HashStore(), rank=2, size=2)


def test_opening_names_the_ranks_that_do_not_come(backend):
    started = time.monotonic()
    where = {"store": HashStore(), "rank": 0, "size": 3, "timeout": timedelta(seconds=0.1)}
    with pytest.raises(CommsTimeout) as caught:
        torchcomms.new_comm(backend, "cpu", name="alone", **where)
    assert caught.value.missing == {1, 2}
    assert time.monotonic() - started < 5


@settings(max_examples=40, deadline=None, database=None)
@given(
    size=st.integers(1, 4),
    shape=st.lists(st.integers(0, 5), max_size=3),
    stretch=st.sampled_from([1, 3, 5000]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int16, torch.int64, torch.uint8]),
    seed=st.integers(0, 2**31),
)
def test_all_reduce_is_the_sum_in_the_order_of_ranks(world, size, shape, stretch, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = [*shape, stretch]
    parts = [torch.randint(-50, 50, shape, generator=generator).to(dtype) for _ in range(size)]
    if dtype.is_floating_point:
        parts = [part * 0.37 for part in parts]

    def run(comm):
        tensor = parts[comm.get_rank()].transpose(0, -1).contiguous().transpose(0, -1)
        comm.all_reduce(tensor, ReduceOp.SUM)
        return tensor

    wide = torch.float32 if dtype is torch.bfloat16 else dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        total = total + part.to(wide)
    for seen in world("inproc", size, run):
        assert torch.equal(seen, total.to(dtype))
