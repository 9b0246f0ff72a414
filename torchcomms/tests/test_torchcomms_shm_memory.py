"""Tensors of the segment: where they are taken, reduced without a copy, kept, given back; and windows over them."""

import gc
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchcomms.backend import ReduceOp
from torchcomms.errors import CommsClosed, CommsTimeout, InvalidCall, PeerFailed, UnsupportedTensor
from torchcomms.providers.shm import ShmBackend, ShmOptions, native
from torchcomms.providers.shm.heap import FreeList
from torchcomms.testing import ThreadWorld

pytestmark = [pytest.mark.unit, pytest.mark.skipif(native.load().core is None, reason=f"no core: {native.load().how}")]


@pytest.fixture
def three():
    opened = ThreadWorld(ShmBackend, 3, options=ShmOptions(native=True, piece=1 << 20))
    yield opened
    opened.close()


def results(group, function):
    found = group.run(function)
    for outcome in found:
        if isinstance(outcome, BaseException):
            raise outcome
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 400)), max_size=60))
def test_the_free_list_never_hands_out_a_byte_twice_and_gets_everything_back(steps):
    free, taken = FreeList(1000), {}
    for take, size in steps:
        if take:
            offset = free.take(size)
            if offset is not None:
                assert all(offset + size <= low or low + room <= offset for low, room in taken.items())
                assert offset + size <= 1000
                taken[offset] = size
        elif taken:
            offset = sorted(taken)[size % len(taken)]
            free.give(offset, taken.pop(offset))
    for offset, size in taken.items():
        free.give(offset, size)
    assert free.take(1000) == 0


@pytest.mark.parametrize("mixed", [False, True], ids=["all in the heap", "one elsewhere"])
@pytest.mark.parametrize("count", [3, 5000, 700_001])
def test_reductions_and_moves_of_tensors_in_the_heap(three, count, mixed):
    def run(backend):
        def tensor(value):
            elsewhere = mixed and backend.rank == 1
            made = torch.empty(count) if elsewhere else backend.empty((count,), torch.float32)
            return made.fill_(value)

        rank = backend.rank
        summed, rooted, told, scanned = tensor(rank + 1), tensor(rank + 1), tensor(rank), tensor(rank + 1)
        for _ in range(2):
            backend.all_reduce(summed, ReduceOp.SUM).wait()
        backend.reduce(rooted, 2, ReduceOp.PRODUCT).wait()
        backend.broadcast(told, 0).wait()
        told_by_another = tensor(rank)
        backend.broadcast(told_by_another, 1).wait()
        backend.scan(scanned, ReduceOp.SUM).wait()
        outputs = [tensor(-1) for _ in range(3)]
        backend.all_gather(outputs, tensor(rank)).wait()
        seen = [summed, rooted, told, told_by_another, scanned, *outputs]
        return [(float(one.min()), float(one.max())) for one in seen]

    for rank, seen in enumerate(results(three, run)):
        wanted = [18.0, 6.0 if rank == 2 else rank + 1.0, 0.0, 1.0, sum(range(1, rank + 2)), 0.0, 1.0, 2.0]
        assert seen == [(value, value) for value in wanted]


def test_memory_is_used_again_when_its_tensor_is_gone_and_outlives_close(three):
    backend = three.backends[0]
    first = backend.empty((1000, 1000), torch.float64)
    place = first.data_ptr()
    view = first[3]
    del first
    gc.collect()
    assert backend.empty((10, 10), torch.float64).data_ptr() != place
    del view
    gc.collect()
    again = backend.empty((1000, 1000), torch.float64)
    assert again.data_ptr() == place
    three.close()
    again.fill_(5.0)
    assert float(again.sum()) == 5e6
    with pytest.raises(CommsClosed):
        backend.empty((1,), torch.float64)


def test_a_full_heap_says_so(three):
    with pytest.raises(MemoryError, match="in one piece"):
        three.backends[0].empty((1 << 40,), torch.float64)


def test_every_dtype_lives_in_the_heap(three):
    for dtype in (torch.bool, torch.bfloat16, torch.float8_e5m2, torch.complex64, torch.uint16, torch.int64):
        tensor = three.backends[0].empty((3, 2), dtype)
        assert (tensor.shape, tensor.dtype, tensor.data_ptr() % 64) == ((3, 2), dtype, 0)


def test_a_window_refuses_what_cannot_be_one_on_all_ranks(three):
    def elsewhere(backend):
        backend.window(torch.ones(3) if backend.rank == 1 else backend.empty((3,), torch.float32))

    def unequal(backend):
        backend.window(backend.empty((3 + backend.rank,), torch.float32))

    assert all(isinstance(one, UnsupportedTensor) and "ranks [1]" in str(one) for one in three.run(elsewhere))
    assert all(isinstance(one, InvalidCall) for one in three.run(unequal))


def test_puts_and_signals_between_all_pairs(three):
    def run(backend):
        memory = backend.empty((3, 1000), torch.float32).zero_()
        window, others = backend.window(memory), [peer for peer in range(3) if peer != backend.rank]
        for step in range(1, 20):
            for peer in others:
                window.put(torch.full((1000,), float(step)), peer, 1000 * backend.rank).wait()
                window.signal(peer).wait()
            for peer in others:
                window.wait_signal(peer).wait()
                if float(memory[peer].min()) < step:
                    return f"signal {step} of {peer} came before its put"
        with pytest.raises(InvalidCall):
            window.put(torch.ones(2), others[0], 2999)
        with pytest.raises(InvalidCall):
            window.signal(3)
        backend.barrier().wait()
        window.close()
        with pytest.raises(CommsClosed):
            window.remote(0)
        return ""

    assert results(three, run) == [""] * 3


def test_a_wait_for_a_signal_ends_at_its_deadline_and_when_a_rank_dies(three):
    def open_window(backend):
        return backend.window(backend.empty((4,), torch.int32))

    windows = results(three, open_window)
    waiting = windows[0].wait_signal(1)
    assert not waiting.test()
    with pytest.raises(CommsTimeout) as caught:
        waiting.wait_host(time.monotonic() + 0.03)
    assert caught.value.missing == {1}
    windows[1].signal(0)
    waiting.wait_host(time.monotonic() + 5)
    three.kill(2)
    with pytest.raises(PeerFailed):
        windows[0].wait_signal(1).wait_host(time.monotonic() + 5)
