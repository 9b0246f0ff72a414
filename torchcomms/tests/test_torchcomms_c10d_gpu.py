"""The nccl backend on real devices: one rank on one device, and the kit's operations between two devices."""

import time

import pytest
import torch
from torch.distributed import HashStore, TCPStore

from torchcomms.backend import P2P, ReduceOp
from torchcomms.providers.c10d import NcclBackend, probe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(probe.why_no_nccl()), reason=f"nccl: {probe.why_no_nccl()}"),
]

PAIR = """
import os, time, torch
from torch.distributed import TCPStore
from torchcomms.backend import P2P, ReduceOp
from torchcomms.errors import MessageMismatch
from torchcomms.providers.c10d import NcclBackend
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]))
backend = NcclBackend.open(rank=rank, size=2, store=store, device="cuda", timeout=60.0)
soon = lambda: time.monotonic() + 30
peer = 1 - rank

total = torch.full((100_003,), float(rank + 1), device="cuda")
backend.all_reduce(total, ReduceOp.SUM).wait()
assert total.sum().item() == 3.0 * 100_003

bits = torch.tensor([1 << rank], dtype=torch.int16, device="cuda")
backend.all_reduce(bits, ReduceOp.BOR).wait()
assert bits.tolist() == [3]

outputs = [torch.empty(3, device="cuda"), torch.empty(5, device="cuda")]
backend.all_gather(outputs, torch.full((3 + 2 * rank,), float(rank), device="cuda")).wait()
assert [output.tolist() for output in outputs] == [[0.0] * 3, [1.0] * 5]

sent, received = torch.full((1 << 20,), float(rank), device="cuda"), torch.empty(1 << 20, device="cuda")
going = backend.post([P2P("send", sent, peer, 7)])
note = torch.ones(1, device="cuda")
backend.post([P2P("send", note, peer, 8)])
backend.post([P2P("recv", torch.empty(1, device="cuda"), peer, 8)]).wait_host(soon())
backend.post([P2P("recv", received, peer, 7)]).wait_host(soon())
going.wait_host(soon())
assert received.mean().item() == peer

if rank == 0:
    backend.post([P2P("send", torch.ones(3, device="cuda"), 1)]).wait_host(soon())
else:
    try:
        backend.post([P2P("recv", torch.ones(2, device="cuda"), 0)]).wait_host(soon())
    except MessageMismatch as error:
        assert (error.expected, error.actual) == (8, 12)
    else:
        raise AssertionError("another length went unnoticed")
backend.barrier().wait_host(soon())
backend.close()
print("done")
"""


@pytest.fixture
def backend():
    opened = NcclBackend.open(rank=0, size=1, store=HashStore(), device="cuda", timeout=30.0)
    yield opened
    opened.close()


def test_one_rank_has_its_own_values(backend):
    tensor = torch.arange(5.0, device="cuda")
    backend.all_reduce(tensor, ReduceOp.AVG).wait()
    backend.broadcast(tensor, 0).wait()
    received = torch.zeros(5, device="cuda")
    batch = [P2P("recv", received, 0, 1), P2P("send", tensor, 0, 1)]
    backend.post(batch).wait_host(time.monotonic() + 10)
    assert received.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_graph_captures_a_collective(backend):
    tensor = torch.ones(4, device="cuda")
    backend.all_reduce(tensor, ReduceOp.SUM).wait()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.all_reduce(tensor, ReduceOp.SUM).wait()
        tensor.add_(1.0)
    graph.replay()
    assert tensor.tolist() == [2.0] * 4


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_ranks_on_two_devices(start, tmp_path):
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    script = tmp_path / "pair.py"
    script.write_text(PAIR)
    for rank in [start(script, RANK=str(rank), MASTER_PORT=str(store.port)) for rank in range(2)]:
        written, errors = rank.communicate()
        assert rank.returncode == 0, errors
        assert written == "done\n"
