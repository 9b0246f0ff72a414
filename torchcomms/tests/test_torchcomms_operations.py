"""Every operation beyond the first ones, on every backend here: values, strides, empty and uneven parts, refusals."""

from datetime import timedelta

import pytest
import torch

import torchcomms
from torchcomms import ReduceOp
from torchcomms.errors import InvalidCall, UnsupportedReduction

pytestmark = pytest.mark.unit
LONG = 20_000


def strided(rows, width, value):
    """A column of a tensor of -1, which holds `value`, and the whole."""
    whole = torch.full((rows, width, 2), -1.0)
    whole[..., 0] = value
    return whole, whole[..., 0]


@pytest.mark.parametrize("count", [3, LONG])
def test_all_gather_single_fills_a_part_for_each_rank(world, backend, count):
    def run(comm):
        whole, output = strided(comm.get_size(), count, -2.0)
        comm.all_gather_single(output, torch.full((count,), comm.get_rank() + 1.0), False)
        assert bool((whole[..., 1] == -1).all())
        return output[:, 0].tolist(), output.mean().item()

    assert world(backend, 3, run) == [([1.0, 2.0, 3.0], 2.0)] * 3


@pytest.mark.parametrize("count", [3, LONG])
def test_reduce_scatter_single_leaves_its_input(world, backend, count):
    def run(comm):
        given = torch.arange(comm.get_size()).repeat_interleave(count) * (comm.get_rank() + 1.0)
        kept, output = given.clone(), torch.empty(count)
        comm.reduce_scatter_single(output, given, ReduceOp.SUM, False)
        assert torch.equal(given, kept)
        return output.unique().tolist()

    assert world(backend, 3, run) == [[6.0 * rank] for rank in range(3)]


def test_all_to_all_single_and_its_uneven_form(world, backend):
    def run(comm):
        rank, size = comm.get_rank(), comm.get_size()
        even = torch.empty(size * 2)
        comm.all_to_all_single(even, torch.arange(size * 2.0) + 10 * rank, False)
        # Rank r sends r + s rows of two to rank s; rank 0 sends itself none.
        inputs = [rank + peer for peer in range(size)]
        given = (
            torch.repeat_interleave(torch.arange(size) + 10.0 * rank, torch.tensor(inputs)).unsqueeze(1).expand(-1, 2)
        )
        uneven = torch.empty(sum(inputs), 2)
        comm.all_to_all_v_single(uneven, given, inputs, inputs, False)
        comm.all_to_all_v_single(even.zero_(), torch.ones(size * 2), [], [], False)
        return uneven[:, 1].tolist(), even.sum().item()

    wanted = [[10.0 * peer + rank for peer in range(3) for _ in range(rank + peer)] for rank in range(3)]
    assert world(backend, 3, run) == [(values, 6.0) for values in wanted]


def test_gather_and_scatter_with_uneven_parts(world, backend):
    def run(comm):
        rank, size = comm.get_rank(), comm.get_size()
        root = rank == 1
        gathered = [torch.empty(peer) for peer in range(size)] if root else []
        comm.gather(gathered, torch.full((rank,), float(rank)), 1, False)
        mine = torch.empty(rank, 2).t()
        comm.scatter(mine, [torch.full((2, peer), 5.0 + peer) for peer in range(size)] if root else None, 1, False)
        return [one.tolist() for one in gathered], mine.tolist()

    found = world(backend, 3, run)
    assert [lists for lists, _ in found] == [[], [[], [1.0], [2.0, 2.0]], []]
    assert [mine for _, mine in found] == [[[], []], [[6.0], [6.0]], [[7.0] * 2] * 2]


def test_gather_single(world, backend):
    def run(comm):
        output = torch.empty(6) if comm.get_rank() == 2 else None
        comm.gather_single(output, torch.full((2,), float(comm.get_rank())), 2, False)
        return None if output is None else output.tolist()

    assert world(backend, 3, run) == [None, None, [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]]


@pytest.mark.parametrize("count", [3, LONG])
def test_scan_reduces_up_to_the_rank(world, backend, count):
    def run(comm):
        tensor = torch.full((count, 2), comm.get_rank() + 1.0)[:, 0]
        comm.scan(tensor, ReduceOp.SUM, False)
        with pytest.raises(UnsupportedReduction, match="avg has no scan"):
            comm.scan(tensor, ReduceOp.AVG, False)
        return tensor.unique().tolist()

    assert world(backend, 4, run) == [[1.0], [3.0], [6.0], [10.0]]


def test_a_list_is_reduced_at_once_each_tensor_in_its_own_layout(world, backend):
    def run(comm):
        whole, column = strided(2, 3, comm.get_rank() + 1.0)
        tensors = [column, torch.empty(0), torch.full((LONG,), 1.0), torch.tensor(2.0)]
        comm.all_reduce_coalesced(tensors, ReduceOp.SUM, True).wait()
        assert bool((whole[..., 1] == -1).all())
        return [tensor.mean().item() for tensor in tensors if tensor.numel()]

    assert world(backend, 2, run) == [[3.0, 2.0, 4.0]] * 2


def test_lists_of_several_dtypes_are_refused(world):
    def run(comm):
        with pytest.raises(InvalidCall, match=r"torch.float32, torch.int64.*one dtype"):
            comm.all_reduce_coalesced([torch.ones(1), torch.ones(1, dtype=torch.int64)], ReduceOp.SUM)

    world("inproc", 1, run)


def test_sendrecv_around_a_ring(world, backend):
    def run(comm):
        rank, size = comm.get_rank(), comm.get_size()
        output = torch.empty(LONG)
        comm.sendrecv(torch.full((LONG,), float(rank)), (rank + 1) % size, output, (rank - 1) % size)
        return output.mean().item()

    assert world(backend, 3, run) == [2.0, 0.0, 1.0]


def test_a_batch_that_lists_its_receives_first_does_not_deadlock(world, backend):
    def run(comm):
        rank, size = comm.get_rank(), comm.get_size()
        batch = comm.batch_op_create()
        received = [torch.full((LONG, 2), -1.0)[:, 0] for _ in range(size)]
        for peer in range(size):
            batch.recv(received[peer], peer)
        for peer in range(size):
            batch.send(torch.full((LONG,), 10.0 * rank + peer), peer)
        assert [op.peer for op in batch.ops] == [*range(size)] * 2
        work = batch.issue(True, torchcomms.BatchP2POptions(timedelta(seconds=20)))
        work.wait()
        assert work.is_completed()
        assert batch.ops == []
        return [one.mean().item() for one in received]

    assert world(backend, 3, run) == [[10.0 * peer + rank for peer in range(3)] for rank in range(3)]


def test_persistent_gathers(world, backend):
    def run(comm):
        handle = comm.all_gather_p_init(torch.empty(2))
        for step in range(3):
            comm.all_gather_p_exec(handle, torch.tensor([step + 10.0 * comm.get_rank()]), False)
        comm.all_gather_p_free(handle)
        return handle.output.tolist()

    assert world(backend, 2, run) == [[2.0, 12.0]] * 2


def test_uneven_forms_under_their_own_names(world, backend):
    def run(comm):
        rank = comm.get_rank()
        gathered = [torch.empty(peer + 1) for peer in range(2)]
        comm.all_gather_v(gathered, torch.full((rank + 1,), float(rank)), False)
        output = torch.empty(rank)
        comm.reduce_scatter_v(output, [torch.empty(0), torch.ones(1)], ReduceOp.SUM, False)
        return [one.tolist() for one in gathered], output.tolist()

    assert world(backend, 2, run) == [([[0.0], [1.0, 1.0]], [2.0] * rank) for rank in range(2)]


def test_memory_of_the_communicator(world, backend):
    def run(comm):
        numbers, grid = comm.empty(LONG), comm.empty((2, 3), dtype=torch.int64)
        assert (grid.shape, grid.dtype) == ((2, 3), torch.int64)
        numbers.fill_(comm.get_rank() + 1.0)
        comm.all_reduce(numbers, ReduceOp.SUM)
        return numbers.unique().tolist()

    assert world(backend, 2, run) == [[3.0]] * 2


REFUSED = {
    "9 elements, which 2 ranks": lambda comm: comm.reduce_scatter_single(torch.empty(4), torch.ones(9), ReduceOp.SUM),
    "a part of output": lambda comm: comm.all_gather_single(torch.empty(4), torch.ones(3)),
    "sum to 4": lambda comm: comm.all_to_all_v_single(torch.empty(4), torch.ones(4), [1, 2], [2, 2]),
    "output_tensor_list is 1": lambda comm: comm.gather([torch.empty(1)], torch.ones(1), comm.get_rank()),
    "output is None": lambda comm: comm.gather_single(None, torch.ones(1), comm.get_rank()),
    "leaves no time": lambda comm: comm.barrier(False, timeout=timedelta(0)),
    "compression 'zip' is unknown": lambda comm: comm.all_reduce(
        torch.ones(1), ReduceOp.SUM, hints={"compress": "zip"}
    ),
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_cannot_be_done_is_refused_before_anything_is_sent(world, word):
    def run(comm):
        with pytest.raises(InvalidCall, match=word):
            REFUSED[word](comm)
        comm.barrier()

    world("inproc", 2, run)


@pytest.mark.parametrize("kind", ["int8", "bf16"])
def test_compression_by_a_hint_to_one_call_or_to_all(world, backend, kind):
    def run(comm):
        tensor = torch.linspace(-1, 1, LONG)
        comm.all_reduce(tensor, ReduceOp.SUM, False, {"compress": kind})
        comm.set_hints({"compress": kind})
        again = torch.linspace(-1, 1, LONG)
        comm.all_reduce(again, ReduceOp.AVG, True).wait()
        return (tensor / 2 - torch.linspace(-1, 1, LONG)).abs().max().item(), torch.equal(tensor, again * 2)

    for error, same in world(backend, 2, run):
        assert 0 < error < 0.05
        assert same
