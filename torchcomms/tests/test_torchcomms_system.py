"""Real processes: a rank killed mid-collective, descriptors, forks, the command, the example and the README."""

import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

import torchcomms
from torchcomms import ReduceOp

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[1]
DEADLINE = 120

VICTIM = """
import os, signal, sys, time
import torch, torchcomms
torch.set_num_threads(1)
comm = torchcomms.new_comm("tcp", "cpu", name="victim")
tensor = torch.ones(4 << 20)
comm.barrier()
print("ready", flush=True)
try:
    while True:
        comm.all_reduce(tensor, torchcomms.ReduceOp.AVG)
except torchcomms.PeerFailed as error:
    print("failed", sorted(error.ranks), time.time(), flush=True)
sys.stdin.read()
"""


def test_one_of_four_killed_in_a_collective_is_named_by_all_survivors_at_once(ranks, tmp_path):
    script = tmp_path / "victim.py"
    script.write_text(VICTIM)
    group = ranks(4, script)
    assert [rank.stdout.readline() for rank in group] == ["ready\n"] * 4
    killed = time.time()
    group[2].kill()
    for survivor in (0, 1, 3):
        word, names, moment = group[survivor].stdout.readline().split()
        assert (word, names) == ("failed", "[2]")
        assert float(moment) - killed < 1.0


def open_world(store, size=2):
    def rank(number):
        where = {"store": store, "rank": number, "size": size, "timeout": timedelta(seconds=20)}
        return torchcomms.new_comm("tcp", "cpu", name="again", **where)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(rank, range(size)))


def on_all(comms, function):
    with ThreadPoolExecutor(len(comms)) as threads:
        return list(threads.map(function, comms))


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_ten_times_opened_and_closed_over_one_store_leaves_no_descriptor_or_thread():
    store = HashStore()
    on_all(open_world(store), lambda comm: comm.finalize())
    before = descriptors(), threading.active_count()
    for _ in range(10):
        comms = open_world(store)
        on_all(comms, lambda comm: comm.all_reduce(torch.ones(10), ReduceOp.SUM))
        on_all(comms, lambda comm: comm.finalize())
    assert (descriptors(), threading.active_count()) == before


def test_communicators_that_are_dropped_and_opens_that_fail_leave_no_descriptor():
    store = HashStore()
    before = descriptors()
    for _ in range(5):
        on_all(open_world(store), lambda comm: comm.barrier())
    where = {"store": store, "rank": 0, "size": 2, "timeout": timedelta(seconds=0.02)}
    with pytest.raises(torchcomms.CommsTimeout):
        torchcomms.new_comm("tcp", "cpu", name="alone", **where)
    assert descriptors() == before


FORK = """
import os, torch, torchcomms
from torchcomms.errors import CommsClosed
torch.set_num_threads(1)
comm = torchcomms.new_comm("tcp", "cpu", name="fork")
comm.all_reduce(torch.ones(3), torchcomms.ReduceOp.SUM)
child = os.fork()
if not child:
    refused = 1
    try:
        comm.barrier()
    except CommsClosed as error:
        refused = 0 if str(os.getppid()) in str(error) else 2
    comm.finalize()
    os._exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
total = torch.ones(100_000)
comm.all_reduce(total, torchcomms.ReduceOp.SUM)
print("sum", total.mean().item())
comm.finalize()
"""


def test_a_forked_child_is_refused_and_its_parent_unharmed(ranks, tmp_path):
    script = tmp_path / "fork.py"
    script.write_text(FORK)
    for rank in ranks(2, script):
        written, errors = rank.communicate()
        assert rank.returncode == 0, errors
        assert written == "sum 2.0\n"


@pytest.mark.parametrize("order", ["1", "-1"])
def test_run_beside_torch_distributed_in_either_order(ranks, tmp_path, order):
    script = tmp_path / "beside.py"
    script.write_text(
        "import sys, torch, torchcomms\n"
        "import torch.distributed as dist\n"
        "torch.set_num_threads(1)\n"
        "opened = [lambda: dist.init_process_group('gloo'), lambda: torchcomms.new_comm('tcp', 'cpu', name='x')]\n"
        "comm = [open() for open in opened[:: int(sys.argv[1])]][::int(sys.argv[1])][1]\n"
        "tensor = torch.ones(2)\n"
        "dist.all_reduce(tensor)\n"
        "comm.all_reduce(tensor, torchcomms.ReduceOp.SUM)\n"
        "print(tensor.tolist(), flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    for rank in ranks(2, script, order):
        written, errors = rank.communicate()
        assert written == "[4.0, 4.0]\n", errors


def test_the_example_of_the_readme_runs(command, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "readme.py"
    script.write_text(blocks[0])
    done = command("run", "-n", "2", script)
    written, errors = done.communicate()
    assert done.returncode == 0, errors
    assert "[0] rank 0 of 2 over shm: [1.5, 1.5, 1.5]" in written


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(ranks, example):
    for rank in ranks(2, example):
        written, errors = rank.communicate()
        assert rank.returncode == 0, errors
        assert "done" in written
