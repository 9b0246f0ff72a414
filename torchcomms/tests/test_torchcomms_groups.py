"""Sub-groups in any order, names, options, and what a communicator says of itself."""

import threading
import time
from datetime import timedelta
from itertools import combinations

import pytest
import torch
from torch.distributed import HashStore, TCPStore

import torchcomms
from torchcomms import CommsTimeout, PeerFailed, ReduceOp
from torchcomms.errors import CommsClosed, InvalidCall, InvalidState

pytestmark = pytest.mark.unit


def total(comm):
    tensor = torch.ones(1)
    comm.all_reduce(tensor, ReduceOp.SUM)
    return int(tensor)


def test_split_as_upstream(world, backend):
    def run(comm):
        rank = comm.get_rank()
        with pytest.raises(InvalidCall, match=f"rank {rank} of 3 cannot split"):
            comm.split([(rank + 1) % 3], "others")
        assert comm.split([], "nobody") is None
        child = comm.split([2, 0], "pair") if rank != 1 else comm.split([], "pair")
        if child is None:
            return None
        found = child.get_name(), child.get_rank(), child.get_size(), child.get_backend(), total(child)
        comm.barrier() if rank == 5 else None
        child.finalize()
        return found

    assert world(backend, 3, run) == [("pair", 1, 2, backend, 2), None, ("pair", 0, 2, backend, 2)]


def test_each_split_is_a_new_group_and_outlives_its_parent(world, backend):
    def run(comm):
        children = [comm.split([0, 1], "again") for _ in range(3)]
        assert total(children[2]) == 2
        comm.finalize()
        assert [total(child) for child in children] == [2] * 3
        with pytest.raises(CommsClosed):
            comm.split([0, 1], "late")
        grandchild = children[0].split([1, 0], "again")
        for child in children:
            child.finalize()
        assert total(grandchild) == 2
        grandchild.finalize()

    world(backend, 2, run)


def test_pairs_split_in_any_order_even_around_a_ring(outcomes, backend):
    # Rank 0 begins with (0, 1), rank 1 with (1, 2), rank 2 with (0, 2): each would wait for the next.
    orders = [[(0, 1), (0, 2)], [(1, 2), (0, 1)], [(0, 2), (1, 2)]]
    ends = threading.Barrier(3)

    def run(comm):
        children = {pair: comm.split(list(pair), "pair") for pair in orders[comm.get_rank()]}
        sums = [total(children[pair]) for pair in combinations(range(3), 2) if pair in children]
        ends.wait(20)
        for child in children.values():
            child.finalize()
        return sums

    assert outcomes(backend, 3, run) == [[2, 2]] * 3


def test_a_split_whose_member_does_not_come_names_it_and_finalizes_at_once(world, backend):
    def run(comm):
        if comm.get_rank() == 1:
            return
        child = comm.split([0, 1], "half", timeout=timedelta(seconds=0.2))
        with pytest.raises(CommsTimeout) as caught:
            child.barrier()
        assert caught.value.missing == {1}
        pending = comm.split([0, 1], "other", timeout=timedelta(seconds=0.2))
        started = time.monotonic()
        pending.finalize()
        assert time.monotonic() - started < 0.15
        with pytest.raises(CommsClosed):
            pending.barrier()

    world(backend, 2, run)


def test_abort_ends_no_process_and_a_child_that_is_still_opening(world):
    def run(comm):
        if comm.get_rank() == 0:
            child = comm.split([0, 1], "never")
            started = time.monotonic()
            child.abort()
            assert time.monotonic() - started < 5
            with pytest.raises(CommsClosed):
                child.barrier()
        comm.barrier()
        comm.abort("enough")
        assert comm.is_aborted()

    world("tcp", 2, run, abort_process_on_timeout_or_error=True)


def test_two_live_communicators_of_one_name_are_refused(world, backend):
    def run(comm):
        where = {"store": store, "rank": comm.get_rank(), "size": 2}
        with torchcomms.new_comm(backend, "cpu", "twin", **where) as first:
            with pytest.raises(InvalidCall, match="'twin' at this store already"):
                torchcomms.new_comm(backend, "cpu", "twin", **where)
            first.barrier()
        with torchcomms.new_comm(backend, "cpu", "twin", **where) as second:
            return total(second)

    store = HashStore()
    assert world(backend, 2, run) == [2, 2]


def test_what_a_communicator_says_of_itself(world):
    def run(comm):
        comm.set_timeout(timedelta(seconds=7))
        comm.set_hints({"a": "b"})
        options = comm.get_options()
        assert (options.timeout, options.hints, options.abort_process_on_timeout_or_error) == (
            timedelta(seconds=7),
            {"a": "b"},
            False,
        )
        assert comm.unsafe_get_backend() is comm.get_backend_impl()
        assert comm.unsafe_get_backend().timeout == 7
        assert comm.get_backend_version() == torchcomms.__version__
        assert (comm.is_abort_supported(), comm.is_aborted()) == (True, False)
        comm.abort()
        assert comm.is_aborted()

    world("inproc", 1, run)


def test_a_communicator_of_an_opened_backend_has_no_store_to_split_over():
    store = HashStore()
    opened = torchcomms.find("inproc").open(rank=0, size=1, store=store, device="cpu", timeout=5)
    with torchcomms.TorchComm(opened, torch.device("cpu"), "bare") as comm:
        assert comm.get_options().timeout == timedelta(seconds=5)
        comm.barrier()
        with pytest.raises(InvalidState, match="without a store"):
            comm.split([0], "x")
        with pytest.raises(InvalidState, match="cannot be reconfigured"):
            comm.reconfigure(1, ["x"])


@pytest.mark.parametrize(
    ("rank", "size"),
    [
        ("TORCHCOMM_RANK", "TORCHCOMM_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("PMIX_RANK", "SLURM_NTASKS"),
        ("RANK", "WORLD_SIZE"),
    ],
)
def test_ranks_come_from_the_variables_of_any_launcher(monkeypatch, rank, size):
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {rank: "0", size: "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}
    for variable, value in {**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(variable, value)
    with torchcomms.new_comm("tcp", "cpu", "launched") as comm:
        assert (comm.get_rank(), comm.get_size()) == (0, 1)


def test_a_child_has_its_own_failures(world, backend):
    def run(comm):
        child = comm.split([0, 1], "fragile")
        child.barrier()
        ready.wait(20)
        if comm.get_rank() == 1:
            child.unsafe_get_backend().sever()
        else:
            with pytest.raises(PeerFailed):
                child.barrier()
        assert total(comm) == 2

    ready = threading.Barrier(2)
    world(backend, 2, run)
