"""A communicator over a backend that works in the order of a device's streams, here one that only pretends to."""

import threading
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
from torch.distributed import HashStore

import torchcomms
from torchcomms import CollectiveMismatch, CommsTimeout, ReduceOp, WorkStatus
from torchcomms.comm import TorchCommWindow
from torchcomms.errors import InvalidCall, InvalidState
from torchcomms.providers.inproc import InprocBackend

pytestmark = pytest.mark.unit


class Ordered:
    """A ticket that notes how it was waited for, and from where."""

    def __init__(self, ticket, notes):
        self._ticket, self._notes = ticket, notes

    def test(self):
        return self._ticket.test()

    def wait(self):
        self._notes.append(("ordered", threading.get_ident()))
        self._ticket.wait()

    def wait_host(self, deadline):
        self._ticket.wait_host(deadline)


class PretendBackend(InprocBackend):
    """inproc, said to work in the order of streams; collectives note the thread that begins them."""

    @classmethod
    def capabilities(cls):
        return replace(super().capabilities(), stream_ordered=True)

    def all_reduce(self, tensor, op, *, deadline=None):
        notes = self.__dict__.setdefault("notes", [])
        notes.append(("begun", threading.get_ident()))
        return Ordered(super().all_reduce(tensor, op, deadline=deadline), notes)


@pytest.fixture
def pretend(world, monkeypatch):
    """`pretend(size, function)`: ranks over the pretended device."""
    monkeypatch.setattr("torchcomms.comm.opening.find", lambda name: PretendBackend)
    return lambda size, function: world("pretend", size, function)


def test_collectives_begin_in_the_callers_stream_and_wait_orders_it(pretend):
    def run(comm):
        tensors = [torch.full((3, 2), float(step))[:, 0] for step in range(3)]
        works = [comm.all_reduce(tensor, ReduceOp.SUM, True) for tensor in tensors]
        for work in works:
            work.wait()
            work.wait_blocking(20)
            assert work.is_completed()
        comm.barrier()
        notes = comm.unsafe_get_backend().notes
        assert {thread for _, thread in notes} == {threading.get_ident()}
        assert [kind for kind, _ in notes] == ["begun"] * 3 + ["ordered"] * 3
        return [tensor.tolist() for tensor in tensors]

    assert pretend(2, run) == [[[0.0] * 3, [2.0] * 3, [4.0] * 3]] * 2


def test_the_host_sees_the_end_by_itself_and_results_come_with_who_asks(pretend):
    def run(comm):
        ended = threading.Event()
        comm.register_post_hook(lambda op_id, args: ended.set())
        tensor = torch.ones(3, 2)[:, 0]
        work = comm.all_reduce(tensor, ReduceOp.SUM, True)
        assert ended.wait(20)
        both.wait(20)
        assert tensor.tolist() == [1.0] * 3
        assert work.is_completed()
        return tensor.tolist(), work.status

    both = threading.Barrier(2)
    assert pretend(2, run) == [([2.0] * 3, WorkStatus.COMPLETED)] * 2


def test_a_mismatch_is_told_there_too(pretend):
    def run(comm):
        with pytest.raises(CollectiveMismatch, match="rank 1 called all_reduce"):
            comm.broadcast(torch.ones(2), 0) if comm.get_rank() == 0 else comm.all_reduce(torch.ones(1), ReduceOp.SUM)
        both.wait(20)

    both = threading.Barrier(2)
    pretend(2, run)


def test_a_missing_rank_is_told_there_too(pretend):
    def run(comm):
        if comm.get_rank() == 0:
            with pytest.raises(CommsTimeout) as caught:
                comm.all_reduce(torch.ones(2), ReduceOp.SUM, timeout=timedelta(seconds=0.1))
            assert caught.value.missing == {1}
        both.wait(20)

    both = threading.Barrier(2)
    pretend(2, run)


class Memory:
    """A window of ranks that are threads."""

    def __init__(self, shared, rank):
        self._shared, self._rank, self.closed = shared, rank, False

    def put(self, source, peer, offset):
        self._shared[peer].view(-1)[offset : offset + source.numel()] = source.view(-1)
        return Ended()

    def signal(self, peer):
        self._shared["signals"][self._rank, peer].release()
        return Ended()

    def wait_signal(self, peer):
        assert self._shared["signals"][peer, self._rank].acquire(timeout=20)
        return Ended()

    def remote(self, rank):
        return self._shared[rank].view(-1)

    def close(self):
        self.closed = True


class Ended:
    def test(self):
        return True

    def wait(self):
        pass

    def wait_host(self, deadline):
        pass


def test_windows_in_upstreams_words(monkeypatch):
    shared = {"signals": {(a, b): threading.Semaphore(0) for a in range(2) for b in range(2)}}
    store, threads, found = HashStore(), [], {}

    def rank(number):
        where = {"store": store, "rank": number, "size": 2, "timeout": timedelta(seconds=20)}
        with torchcomms.new_comm("inproc", "cpu", "windows", **where) as comm:
            monkeypatch.setattr(
                comm.unsafe_get_backend(),
                "window",
                lambda tensor: (shared.__setitem__(number, tensor), Memory(shared, number))[1],
                raising=False,
            )
            found[number] = use(comm)

    def use(comm):
        number, peer = comm.get_rank(), 1 - comm.get_rank()
        window = comm.new_window()
        assert isinstance(window, TorchCommWindow)
        with pytest.raises(InvalidState, match="no tensor"):
            window.put(torch.ones(1), peer, 0, False)
        memory = torch.zeros(2, 3)
        window.tensor_register(memory)
        with pytest.raises(InvalidState, match="already"):
            window.tensor_register(memory)
        assert (window.get_size(), window.shape, window.dtype) == (24, [2, 3], torch.float32)
        assert (window.get_tensor() is memory, window.device) == (True, torch.device("cpu"))
        comm.barrier(False)
        with pytest.raises(InvalidCall, match=r"4 elements of torch.float32 at 3 do not fit"):
            window.put(torch.ones(4), peer, 3, False)
        window.put(torch.full((2, 2), number + 1.0)[:, 0], peer, 2, True).wait()
        window.signal(peer, False)
        window.wait_signal(peer, True).wait()
        kinds = torchcomms.TorchCommWinAccessType
        assert window.get_attr(peer).access_type is kinds.WIN_ACCESS_TYPE_UNIFIED
        values = memory.view(-1).tolist(), window.map_remote_tensor(peer).shape
        comm.barrier(False)
        window.tensor_deregister()
        with pytest.raises(InvalidState):
            window.tensor_deregister()
        return values

    for number in range(2):
        threads.append(threading.Thread(target=rank, args=(number,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    shape = torch.Size([2, 3])
    assert found == {number: ([0.0, 0.0, 2.0 - number, 2.0 - number, 0.0, 0.0], shape) for number in range(2)}
