"""A script in upstream's words, run by real processes: positional async_op, hints, timeouts, hooks, objects."""

import pytest

pytestmark = pytest.mark.system

SCRIPT = """
import json, sys
from datetime import timedelta

import torch
import torchcomms
from torchcomms import ReduceOp, TorchComm, new_comm, objcol
from torchcomms.hooks import FlightRecorderHook, NanCheckHook

torch.set_num_threads(1)
device = torch.device("cpu")
comm = new_comm(
    sys.argv[1], device, "main_comm", abort_process_on_timeout_or_error=False, timeout=timedelta(seconds=60)
)
assert isinstance(comm, TorchComm)
rank, size = comm.get_rank(), comm.get_size()
options = {"hints": {"some_key": "some_value"}, "timeout": timedelta(seconds=60)}

recorder = FlightRecorderHook(max_entries=100, isolated=True)
recorder.register_with_comm(comm)
NanCheckHook().register_with_comm(comm)
seen = []
handle = comm.register_pre_hook(lambda name, op_id, args: seen.append((name, op_id)))

tensor = torch.full((1024,), float(rank + 1), dtype=torch.float32, device=device)
comm.all_reduce(tensor, ReduceOp.SUM, False, **options)
assert tensor[0].item() == size * (size + 1) / 2
work = comm.all_reduce(tensor, op=torchcomms.ReduceOp.AVG, async_op=True)
work.wait()
work.wait_blocking()
assert work.is_completed()
assert seen[0][0] == torchcomms.OpName.all_reduce
handle.remove()

send_rank, recv_rank = (rank + 1) % size, (rank + size - 1) % size
received = torch.zeros(4)
sending = comm.send(torch.full((4,), float(rank)), send_rank, async_op=True, **options)
receiving = comm.recv(received, recv_rank, async_op=True, **options)
sending.wait()
receiving.wait()
assert received.tolist() == [float(recv_rank)] * 4

batch = comm.batch_op_create()
batch.send(torch.ones(2), send_rank)
batch.recv(received[:2], recv_rank)
batch.issue(False, torchcomms.BatchP2POptions()).wait()
assert received.tolist() == [1.0, 1.0, float(recv_rank), float(recv_rank)]

parts = [torch.zeros(4) for _ in range(size)]
mine = torch.full((4,), float(rank))
comm.all_gather(parts, mine, False, **options)
assert [part[0].item() for part in parts] == [float(peer) for peer in range(size)]
comm.gather(parts if rank == 0 else [], mine, 0, False, **options)
comm.scatter(mine, parts if rank == 0 else [], root=0, async_op=False)
assert mine.tolist() == [float(rank)] * 4
whole = torch.zeros(4 * size)
comm.all_gather_single(whole, mine, False, **options)
comm.reduce_scatter_single(mine, whole, ReduceOp.SUM, False)
comm.reduce_scatter(output=mine, input_list=parts, op=ReduceOp.MAX, async_op=False)
comm.reduce(tensor, 0, ReduceOp.PREMUL_SUM(torch.tensor(0.5)), False)
comm.all_to_all_single(whole, whole.clone(), False)
comm.all_to_all_v_single(whole, whole.clone(), [4] * size, [4] * size, False)
comm.all_to_all(parts, [torch.ones(4) for _ in range(size)], False)
comm.broadcast(tensor, root=0, async_op=False)
comm.barrier(False, **options).wait()

found = [None] * size
objcol.all_gather_object(comm, found, {"rank": rank})
assert [one["rank"] for one in found] == list(range(size))

child = comm.split(ranks=list(range(size)), name="child", timeout=timedelta(seconds=60))
assert (child.get_rank(), child.get_size(), child.get_name()) == (rank, size, "child")
child.all_reduce(torch.ones(1), ReduceOp.SUM, False)
child.finalize()

trace = json.loads(recorder.dump_json())
assert trace["entries"][0]["profiling_name"] == f"{comm.get_backend()}:all_reduce"
recorder.unregister()

again = new_comm(sys.argv[1], device, "elastic", enable_reconfigure=True)
handles = [None] * size
objcol.all_gather_object(comm, handles, again.get_init_handle())
again.reconfigure(uuid=0, init_handles=handles, timeout=timedelta(milliseconds=60000)).wait()
assert (again.get_rank(), again.get_size()) == (rank, size)
again.barrier(False)
again.finalize()
comm.finalize()
print("finished", flush=True)
"""


@pytest.mark.parametrize("kind", ["auto", "gloo", "shm", "tcp"])
def test_a_script_in_upstreams_words_runs(ranks, tmp_path, kind):
    script = tmp_path / "upstream.py"
    script.write_text(SCRIPT)
    for rank in ranks(3, script, kind):
        written, errors = rank.communicate()
        assert (rank.returncode, written) == (0, "finished\n"), errors
