"""The vendors' backends without their hardware: on the pretend device, and what they say to torch's process groups."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

from torchcomms.backend import P2P, ReduceOp
from torchcomms.doctor import examine
from torchcomms.errors import CommsAborted, CommsTimeout, InvalidCall, InvalidState, PeerFailed
from torchcomms.providers.c10d import NcclBackend, RcclBackend, VendorOptions, XcclBackend, probe, vendors
from torchcomms.providers.c10d.library import GROUPS, Library
from torchcomms.providers.c10d.reductions import Dialect, in_words_of_torch
from torchcomms.testing import CommThreads, ThreadWorld, check_backend, check_communicator
from torchcomms.testing.pretend import PretendBackend, PretendTensor, register
from torchcomms.testing.pretend.backend import PretendOptions

VENDORS = {"nccl": NcclBackend, "rccl": RcclBackend, "xccl": XcclBackend}


@pytest.fixture(scope="module", autouse=True)
def device():
    return register()


@pytest.fixture
def world():
    opened = []

    def world(size, **arguments):
        opened.append(ThreadWorld(PretendBackend, size, device="pretend", **arguments))
        return opened[-1]

    yield world
    for one in opened:
        one.close()


def on_device(*values):
    return PretendTensor(torch.tensor(values))


@pytest.mark.contract
def test_the_kit_passes_on_the_pretend_device():
    report = check_backend(
        lambda size: ThreadWorld(PretendBackend, size, device="pretend"), only=["core", "derived", "fault", "memory"]
    )
    assert not report.failed, str(report)


@pytest.mark.contract
@pytest.mark.parametrize(("exact", "other"), [(True, set()), (False, {"reduction.halves"})])
def test_exact_reductions_are_the_contracts_own_and_others_the_librarys(exact, other):
    report = check_backend(
        lambda size: ThreadWorld(PretendBackend, size, device="pretend", options=PretendOptions(exact=exact)),
        only=["reduction"],
    )
    assert len(report.ran) >= 7
    assert set(report.failed) == other, str(report)


@pytest.mark.contract
@pytest.mark.slow
def test_the_kit_passes_on_every_dtype_of_the_pretend_device():
    report = check_backend(lambda size: ThreadWorld(PretendBackend, size, device="pretend"), only=["matrix"])
    assert not report.failed, str(report)


@pytest.mark.contract
def test_a_communicator_works_on_the_pretend_device():
    report = check_communicator(
        lambda size: CommThreads(PretendBackend, size, device="pretend"),
        only=["comm.strided", "comm.lengths", "comm.pair", "comm.batch", "comm.async", "comm.threads", "comm.death"],
    )
    assert len(report.ran) == 7
    assert not report.failed, str(report)


@pytest.mark.unit
def test_wait_orders_the_stream_and_wait_host_blocks(world):
    first, second = world(2).backends
    with ThreadPoolExecutor(1) as other:
        tensor = on_device(1.0, 2.0)
        ticket = first.all_reduce(tensor, ReduceOp.SUM)
        ticket.wait()  # returns, though the other rank has not come
        assert not ticket.test()
        with pytest.raises(CommsTimeout) as caught:
            ticket.wait_host(time.monotonic() + 0.05)
        assert caught.value.missing == {1}
        assert tensor.held.tolist() == [1.0, 2.0]
        doubled = other.submit(lambda: second.all_reduce(on_device(10.0, 20.0), ReduceOp.SUM).wait())
        # Reading is in the order of the stream, so it sees the sum without any other wait.
        assert (tensor + 0).held.tolist() == [11.0, 22.0]
        doubled.result()
        assert ticket.test()


@pytest.mark.unit
def test_a_read_that_is_not_ordered_sees_what_was_there(world):
    first, second = world(2).backends
    tensor = on_device(1.0)
    first.all_reduce(tensor, ReduceOp.SUM)
    assert (tensor + 0).held.tolist() == [1.0]
    with ThreadPoolExecutor(1) as other:
        other.submit(lambda: second.all_reduce(on_device(1.0), ReduceOp.SUM)).result()


@pytest.mark.unit
def test_sends_that_cross_do_not_stand_in_each_others_way(world):
    def cross(backend):
        peer = 1 - backend.rank
        sent = PretendTensor(torch.full((100_000,), float(backend.rank)))
        received = PretendTensor(torch.zeros(100_000))
        going = backend.post([P2P("send", sent, peer)])
        backend.post([P2P("recv", received, peer)]).wait_host(time.monotonic() + 10)
        going.wait_host(time.monotonic() + 10)
        return float(received.mean())

    assert world(2).run(cross) == [1.0, 0.0]


@pytest.mark.unit
def test_host_tensors_go_beside_the_device(world):
    def both(backend):
        peer = 1 - backend.rank
        host, device = torch.zeros(2), on_device(0.0)
        batch = [P2P("recv", host, peer, 1), P2P("recv", device, peer, 1)]
        batch += [P2P("send", torch.ones(2), peer, 1), P2P("send", on_device(3.0), peer, 1)]
        backend.post(batch).wait_host(time.monotonic() + 10)
        return host.tolist(), device.cpu().tolist()

    assert world(2).run(both) == [([1.0, 1.0], [3.0])] * 2


@pytest.mark.unit
def test_a_graph_captures_no_messages(world, monkeypatch):
    backend = world(2).backends[0]
    monkeypatch.setattr(backend._streams, "capturing", lambda: True)
    with pytest.raises(InvalidState, match="capture collectives only"):
        backend.post([P2P("send", on_device(1.0), 1)])


@pytest.mark.unit
def test_a_failure_of_the_library_is_an_abort_or_a_death(world, monkeypatch):
    first, second = world(2).backends

    def fail(*arguments):
        raise RuntimeError("NCCL error: unhandled")

    monkeypatch.setattr(first._library, "broadcast", fail)
    with pytest.raises(CommsAborted, match="unhandled"):
        first.broadcast(on_device(1.0), 0)
    second.sever()
    until = time.monotonic() + 5
    while not first.lost() and time.monotonic() < until:
        continue
    with pytest.raises(PeerFailed) as caught:
        first.broadcast(on_device(1.0), 0)
    assert caught.value.ranks == {1}


class Recorder:
    """A process group that notes what it is told."""

    supports_coalescing = True

    def __init__(self, *arguments):
        self.arguments, self.calls = arguments, []

    def __getattr__(self, name):
        def note(*arguments):
            self.calls.append((name, *arguments))
            return self

        return note

    def is_completed(self):
        return True


@pytest.mark.unit
def test_messages_up_and_down_the_ranks_have_a_group_each():
    together, upward, downward = groups = [Recorder() for _ in range(3)]
    library, tensor = Library(1, *groups), torch.ones(3, dtype=torch.uint8)
    library.send(tensor, 2)
    library.recv(tensor, 0)
    assert [call[0::2] for call in upward.calls] == [("send", 2), ("recv", 0)]
    library.send(tensor, 0)
    library.recv(tensor, 2)
    assert [call[0::2] for call in downward.calls] == [("send", 0), ("recv", 2)]
    assert not together.calls


@pytest.mark.unit
def test_what_ranks_exchange_together_is_one_group_of_bytes():
    together = Recorder()
    library = Library(0, together, Recorder(), Recorder())
    odd = torch.ones(3, dtype=torch.complex64)
    library.exchange([P2P("recv", odd, 1), P2P("send", odd, 1)])
    assert [call[0] for call in together.calls] == ["_start_coalescing", "recv", "send", "_end_coalescing"]
    (moved,) = together.calls[1][1]
    assert (moved.dtype, moved.numel(), moved.data_ptr()) == (torch.uint8, 24, odd.data_ptr())
    assert library.exchange([]) == []


@pytest.mark.unit
def test_roots_and_reductions_reach_the_group_in_its_words():
    together = Recorder()
    library, tensor = Library(0, together, Recorder(), Recorder()), torch.ones(2)
    library.broadcast(tensor, 3)
    library.reduce(tensor, 2, dist.ReduceOp.MAX)
    library.all_reduce(tensor, dist.ReduceOp.PRODUCT)
    library.reduce_scatter(tensor, [tensor, tensor], dist.ReduceOp.SUM)
    library.all_gather([tensor, tensor], tensor)
    broadcast, reduce, all_reduce, reduce_scatter, all_gather = together.calls
    assert (broadcast[2].rootRank, broadcast[2].rootTensor) == (3, 0)
    assert (reduce[2].rootRank, reduce[2].reduceOp) == (2, dist.ReduceOp.MAX)
    assert all_reduce[2].reduceOp == dist.ReduceOp.PRODUCT
    assert (reduce_scatter[0], len(reduce_scatter[1]), len(reduce_scatter[2][0])) == ("reduce_scatter", 1, 2)
    assert (all_gather[0], len(all_gather[1][0]), len(all_gather[2])) == ("allgather", 2, 1)


@pytest.mark.unit
def test_a_library_is_ended_softly_only_if_nothing_may_hang_in_it():
    for at_once, word in ((False, "shutdown"), (True, "abort")):
        groups = [Recorder() for _ in range(3)]
        Library(0, *groups).end(at_once=at_once)
        assert [group.calls for group in groups] == [[(word,)]] * 3


@pytest.mark.unit
def test_only_what_the_contract_means_is_left_to_the_library():
    dialect, exact = Dialect(NcclBackend.floats), Dialect(NcclBackend.floats, exact=True)
    premul = ReduceOp.PREMUL_SUM(0.5)
    assert dialect.says(ReduceOp.SUM, torch.bfloat16)
    assert dialect.says(premul, torch.float32)
    assert not exact.says(ReduceOp.MIN, torch.float32)
    assert exact.says(ReduceOp.SUM, torch.int64)
    assert not dialect.says(ReduceOp.AVG, torch.int64)
    assert not dialect.says(ReduceOp.BXOR, torch.int32)
    assert not dialect.says(ReduceOp.SUM, torch.int16)
    assert not dialect.says(ReduceOp.SUM, torch.complex64)
    assert not Dialect(XcclBackend.floats).says(premul, torch.float32)
    assert in_words_of_torch(ReduceOp.SUM, torch.bool) == dist.ReduceOp.MAX
    assert in_words_of_torch(ReduceOp.PRODUCT, torch.bool) == dist.ReduceOp.MIN
    assert in_words_of_torch(ReduceOp.AVG, torch.float16) == dist.ReduceOp.AVG
    assert in_words_of_torch(premul, torch.float32) == dist.ReduceOp.PREMUL_SUM


@pytest.mark.unit
@pytest.mark.parametrize(
    ("ask", "version", "libraries", "devices", "said"),
    [
        ("nccl", {}, False, False, "built without CUDA"),
        ("nccl", {"hip": "6.4"}, True, True, "open rccl"),
        ("nccl", {"cuda": "13.0"}, False, True, "built without NCCL"),
        ("nccl", {"cuda": "13.0"}, True, False, "no CUDA device is visible"),
        ("nccl", {"cuda": "13.0"}, True, True, ""),
        ("rccl", {}, False, False, "built without ROCm"),
        ("rccl", {"cuda": "13.0"}, True, True, "open nccl"),
        ("rccl", {"hip": "6.4"}, True, False, "no ROCm device is visible"),
        ("rccl", {"hip": "6.4"}, True, True, ""),
        ("xccl", {}, False, False, "built without XPU"),
        ("xccl", {"xpu": "2025"}, False, False, "built without oneCCL"),
        ("xccl", {"xpu": "2025"}, True, False, "no XPU device is visible"),
        ("xccl", {"xpu": "2025"}, True, True, ""),
    ],
)
def test_it_is_said_why_a_library_cannot_be_used(monkeypatch, ask, version, libraries, devices, said):
    for name in ("cuda", "hip", "xpu"):
        monkeypatch.setattr(torch.version, name, version.get(name))
        if name != "hip":
            monkeypatch.setattr(getattr(torch, name), "is_available", lambda: devices)
    for name in ("nccl", "xccl"):
        monkeypatch.setattr(torch.distributed, f"is_{name}_available", lambda: libraries)
    reason = getattr(probe, f"why_no_{ask}")()
    assert said in reason
    assert bool(reason) == bool(said)
    claims = VENDORS[ask].capabilities()
    assert (claims.usable, claims.reason) == (not said, reason)
    assert claims.stream_ordered


@pytest.mark.unit
def test_a_backend_that_cannot_be_used_here_says_so_when_opened_and_to_the_doctor(monkeypatch):
    monkeypatch.setattr(vendors, "why_no_nccl", lambda: "no CUDA device is visible")
    with pytest.raises(InvalidCall, match="nccl backend is not usable here: no CUDA device is visible"):
        NcclBackend.open(rank=0, size=1, store=HashStore(), device="cuda", timeout=5.0)
    assert "no CUDA device is visible" in str(examine("nccl"))


class GroupOptions:
    """The options of a vendor's group."""


class NoStreams:
    def __init__(self, device):
        self.device = device


@pytest.mark.unit
@pytest.mark.parametrize("said", [None, "3"])
def test_a_group_is_built_to_outlive_failures_unless_the_user_says_otherwise(monkeypatch, said):
    handling, built = "TORCH_NCCL_ASYNC_ERROR_HANDLING", []

    class Group(Recorder):
        Options = GroupOptions

        def __init__(self, *arguments):
            super().__init__(*arguments)
            built.append((self, os.environ.get(handling)))

    monkeypatch.delenv(handling, raising=False)
    if said is not None:
        monkeypatch.setenv(handling, said)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Group, raising=False)
    monkeypatch.setattr(vendors, "why_no_nccl", lambda: "")
    monkeypatch.setattr(vendors, "AcceleratorStreams", NoStreams)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    options = VendorOptions(high_priority=True)
    backend = NcclBackend.open(rank=0, size=1, store=HashStore(), device="cuda", timeout=5.0, options=options)
    assert [value for _, value in built] == [said or "2"] * len(GROUPS)
    assert os.environ.get(handling) == said
    group, _ = built[0]
    assert group.arguments[1:3] == (0, 1)
    assert (group.arguments[3]._timeout, group.arguments[3].is_high_priority_stream) == (vendors.FOREVER, True)
    assert group.calls == [("eager_connect_single_device", torch.device("cuda", 5))]
    backend.close()
    assert group.calls[-1] == ("shutdown",)
