"""The shm backend in one process: the kit in both forms, values around every threshold, order, threads, wrapping."""

import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.distributed import HashStore

from torchcomms import find
from torchcomms.backend import ReduceOp
from torchcomms.errors import BackendInvalid, CommsTimeout, MessageMismatch
from torchcomms.providers.shm import ShmBackend, ShmOptions, native
from torchcomms.providers.shm.rendezvous import layout
from torchcomms.testing import ThreadWorld, check_backend

needs_core = pytest.mark.skipif(native.load().core is None, reason=f"no core: {native.load().how}")
SMALL, PIECE = 16 << 10, 1 << 20


def world(size, native=True, **options):
    return ThreadWorld(ShmBackend, size, options=ShmOptions(native=native, **options))


@pytest.fixture
def three():
    opened = world(3, piece=PIECE)
    yield opened
    opened.close()


def results(group, function):
    found = group.run(function)
    for outcome in found:
        if isinstance(outcome, BaseException):
            raise outcome
    return found


@needs_core
@pytest.mark.contract
def test_the_kit_passes_over_the_core():
    report = check_backend(lambda size: world(size))
    assert not report.failed, str(report)
    assert not report.unclaimed, str(report)


@pytest.mark.contract
@pytest.mark.slow
def test_the_kit_passes_over_sockets():
    report = check_backend(lambda size: world(size, native=False))
    assert not report.failed, str(report)


@pytest.mark.unit
def test_it_is_found_by_name_and_says_where_its_core_comes_from():
    assert find("shm") is ShmBackend
    claims = ShmBackend.capabilities()
    assert claims.usable
    assert claims.mismatch == ("inline" if native.expected().core is not None else "none")


@needs_core
@pytest.mark.unit
@pytest.mark.parametrize(
    ("size", "dtype"), [(1, torch.float32), (2, torch.bfloat16), (3, torch.float32), (5, torch.int32)]
)
def test_sums_are_right_around_every_threshold(size, dtype):
    # Inside the line of the flag, in one round, shared out, in several rounds, in several pieces.
    plan, item = layout(size, PIECE), dtype.itemsize
    region = plan.slot // size
    edges = [32, SMALL, region, region * size, PIECE, 2 * PIECE]
    counts = sorted({max(0, edge // item + step) for edge in edges for step in (-1, 0, 1)} | {0, 1, size})
    group = world(size, piece=PIECE)

    def reduce_all(backend):
        seen = []
        for count in counts:
            tensor = (torch.arange(count) % 3 + backend.rank).to(dtype)
            backend.all_reduce(tensor, ReduceOp.SUM).wait()
            seen.append(tensor)
        return seen

    for seen in results(group, reduce_all):
        for count, tensor in zip(counts, seen, strict=True):
            wanted = (torch.arange(count) % 3 * size + size * (size - 1) // 2).to(dtype)
            assert torch.equal(tensor, wanted), count
    group.close()


@needs_core
@pytest.mark.unit
@pytest.mark.parametrize("count", [0, 1, 7, 200_000, 700_000])
def test_moving_operations_in_as_many_rounds_as_it_takes(three, count):
    def move(backend):
        rank, size = backend.rank, backend.size
        lengths = [count * (one + 1) // 2 for one in range(size)]
        mine = torch.full((lengths[rank],), rank, dtype=torch.int16)
        gathered = [torch.empty(length, dtype=torch.int16) for length in lengths]
        backend.all_gather(gathered, mine).wait()
        sent = [torch.full((lengths[rank] + lengths[to],), 10 * rank + to, dtype=torch.int16) for to in range(size)]
        received = [torch.empty_like(one) for one in sent]
        backend.all_to_all(received, sent).wait()
        part = torch.empty(lengths[rank])
        backend.reduce_scatter(part, [torch.full((length,), rank + 1.0) for length in lengths], ReduceOp.SUM).wait()
        scanned = torch.full((count,), rank + 1.0)
        backend.scan(scanned, ReduceOp.SUM).wait()
        collected = [torch.empty(length, dtype=torch.int16) for length in lengths] if rank == 1 else None
        backend.gather(collected, mine, 1).wait()
        spread = torch.empty(lengths[rank], dtype=torch.int16)
        backend.scatter(spread, gathered if rank == 2 else None, 2).wait()
        told = torch.full((count,), float(rank))
        backend.broadcast(told, 2).wait()
        summed = torch.full((count,), rank + 1.0)
        backend.reduce(summed, 1, ReduceOp.SUM).wait()
        return gathered, received, part, scanned, collected, spread, told, summed

    def same(tensor, value):
        return bool((tensor == value).all())

    for rank, found in enumerate(results(three, move)):
        gathered, received, part, scanned, collected, spread, told, summed = found
        assert all(same(one, source) for source, one in enumerate(gathered))
        assert all(same(one, 10 * source + rank) for source, one in enumerate(received))
        assert same(part, 6.0)
        assert same(scanned, sum(range(1, rank + 2)))
        assert collected is None or all(same(one, source) for source, one in enumerate(collected))
        assert same(spread, rank)
        assert same(told, 2.0)
        assert same(summed, 6.0 if rank == 1 else rank + 1.0)


@needs_core
@pytest.mark.unit
def test_a_block_of_another_length_is_named_at_its_receiver_and_the_group_goes_on(three):
    def differ(backend):
        sent = [torch.zeros(5 if (backend.rank, to) == (0, 2) else 4) for to in range(3)]
        try:
            backend.all_to_all([torch.zeros(4) for _ in range(3)], sent).wait()
        except MessageMismatch as error:
            return error.peer, error.expected, error.actual
        return None

    assert results(three, differ) == [None, None, (0, 16, 20)]
    assert results(three, lambda backend: backend.express.barrier()) == [True] * 3


@needs_core
@pytest.mark.unit
def test_many_in_flight_waited_for_in_any_order_and_from_other_threads(three):
    def overlap(backend):
        tensors = [torch.full((size,), float(number)) for number, size in enumerate([3, 60_000, 0, 9, 5000, 1])]
        tickets = [backend.all_reduce(tensor, ReduceOp.SUM) for tensor in tensors]
        order = tickets[::-1] if backend.rank else tickets
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda ticket: ticket.wait(), order))
        assert all(ticket.test() for ticket in tickets)
        return all(bool((tensor == 3.0 * number).all()) for number, tensor in enumerate(tensors))

    assert results(three, overlap) == [True] * 3


@needs_core
@pytest.mark.unit
def test_two_threads_of_each_rank_on_two_groups():
    groups = [world(2), world(2)]

    def repeat(number, rank):
        backend, total = groups[number].backends[rank], 0.0
        for step in range(200):
            tensor = torch.full((1 + step * 37,), float(number + 1))
            assert backend.express.all_reduce(tensor, ReduceOp.SUM)
            total += float(tensor[-1])
        return total

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(repeat, [0, 0, 1, 1], [0, 1, 0, 1]))
    assert found == [400.0, 400.0, 800.0, 800.0]
    for group in groups:
        group.close()


@needs_core
@pytest.mark.unit
def test_express_declines_what_it_cannot_do_and_while_others_are_pending(three):
    express = three.backends[0].express

    class Mine(torch.Tensor):
        pass

    negated = torch.tensor([1 + 2j]).conj().imag
    assert negated.is_contiguous()
    for tensor in (torch.ones(4, 4).t()[:, :2], torch.ones(2, dtype=torch.complex64), torch.ones(2).as_subclass(Mine)):
        assert not express.all_reduce(tensor, ReduceOp.SUM)
        assert not express.broadcast(tensor, 0)
    assert not express.all_reduce(negated, ReduceOp.SUM)
    assert not express.all_reduce(torch.ones(2), ReduceOp.PREMUL_SUM(0.5))
    assert not express.all_reduce(torch.ones(2), ReduceOp.BAND)
    ticket = three.backends[0].barrier()
    assert not express.barrier()
    assert not express.all_reduce(torch.ones(2), ReduceOp.SUM)
    results(three, lambda backend: (ticket if backend.rank == 0 else backend.barrier()).wait())


@needs_core
@pytest.mark.unit
def test_tensors_that_lie_anyhow_in_memory_are_reduced_too(three):
    def shifted(backend):
        memory = torch.zeros(4 * 10_000 + 4, dtype=torch.uint8)
        tensor = torch.frombuffer(memory.numpy(), dtype=torch.float32, count=10_000, offset=1 if backend.rank else 0)
        tensor.fill_(2.0)
        backend.all_reduce(tensor, ReduceOp.SUM).wait()
        return float(tensor.mean())

    assert results(three, shifted) == [6.0] * 3


@needs_core
@pytest.mark.unit
def test_the_number_of_rounds_may_wrap():
    core, size, plan = native.load().core, 2, layout(2, PIECE)
    segment = os.memfd_create("test", os.MFD_CLOEXEC)
    os.ftruncate(segment, plan.total)
    with mmap.mmap(segment, 4096) as memory:
        for rank in range(size):
            for parity in range(2):
                start = rank * 128 + parity * 64
                memory[start : start + 4] = (2**32 - 5).to_bytes(4, "little")
    sizes = plan.slot, plan.chunk, plan.small, plan.piece, plan.heap
    groups = [core.Comm(segment, rank, size, sizes, 1000, 10_000_000_000) for rank in range(size)]
    os.close(segment)

    def repeat(group):
        seen = []
        for step in range(12):
            tensor = torch.full((5000 * step + 1,), float(step))
            assert group.all_reduce(tensor.data_ptr(), tensor.numel(), 0) == 0
            seen.append(bool((tensor == 2.0 * step).all()))
        return all(seen)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(repeat, groups)) == [True, True]


@pytest.mark.unit
def test_an_open_that_waits_in_vain_names_the_missing_and_leaves_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CommsTimeout) as caught:
        ShmBackend.open(rank=0, size=2, store=HashStore(), device="cpu", timeout=0.05)
    assert caught.value.missing == {1}
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.unit
def test_one_rank_without_a_core_makes_all_use_sockets(monkeypatch):
    store, choices = HashStore(), [None, None, False]

    def start(rank):
        options = ShmOptions(native=choices[rank])
        return ShmBackend.open(rank=rank, size=3, store=store, device="cpu", timeout=20.0, options=options)

    with ThreadPoolExecutor(3) as threads:
        opened = list(threads.map(start, range(3)))
        assert {type(backend).__name__ for backend in opened} == {"SocketShmBackend"}

        def add(backend):
            tensor = torch.ones(10)
            backend.all_reduce(tensor, ReduceOp.SUM).wait()
            return float(tensor.mean())

        assert list(threads.map(add, opened)) == [3.0] * 3
    for backend in opened:
        backend.close()


@pytest.mark.unit
def test_who_insists_on_a_core_that_is_not_there_is_told_why(monkeypatch):
    from torchcomms.providers.shm import backend as module

    monkeypatch.setattr(module.native, "load", lambda: native.Native(None, "no C compiler"))
    with pytest.raises(BackendInvalid, match="no C compiler"):
        ShmBackend.open(rank=0, size=1, store=HashStore(), device="cpu", timeout=1.0, options=ShmOptions(native=True))


@pytest.mark.unit
def test_waiting_needs_no_thread_of_ours():
    before = threading.active_count()
    opened = ShmBackend.open(rank=0, size=1, store=HashStore(), device="cpu", timeout=5.0)
    opened.barrier().wait()
    assert threading.active_count() == before
    opened.close()
