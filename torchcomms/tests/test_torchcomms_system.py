"""Real processes: a rank killed mid-collective, descriptors, forks, the command, the example and the README."""

import os
import re
import signal
import subprocess
import sys
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
COMMAND = "from torchcomms.cli import main; main()"
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


@pytest.fixture
def command(start, tmp_path):
    """`command(*arguments, **environment)`: a process of the command `torchcomms`."""
    script = tmp_path / "torchcomms_command.py"
    script.write_text(COMMAND)
    return lambda *arguments, **env: start(script, *arguments, **env)


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


def test_run_says_who_failed_and_why_and_ends_the_rest(command, tmp_path):
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    sys.exit('no such luck ' + sys.argv[2])\n"
        "time.sleep(600)\n"
    )
    done = command("run", "-n", "3", script, "--flag", "today")
    _, errors = done.communicate()
    assert done.returncode == 1
    assert "[1] no such luck today" in errors
    assert "rank 1 exited with code 1; its last errors:\n    no such luck today" in errors
    assert "rank 0 was killed by SIGTERM when the rest was ended" in errors


def test_run_passes_on_a_signal_as_exit_code_and_kills_the_stubborn(command, tmp_path):
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open(f'{os.environ[\"FOLDER\"]}/{os.environ[\"RANK\"]}', 'w').close()\n"
        "while len([name for name in os.listdir(os.environ['FOLDER']) if name.isdigit()]) < 2:\n"
        "    time.sleep(0.01)\n"
        "if os.environ['RANK'] == '0':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(600)\n"
    )
    done = command("run", "-n", "2", "--grace", "0.2", script, FOLDER=str(tmp_path))
    _, errors = done.communicate()
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 0 was killed by SIGKILL" in errors
    assert "rank 1 was killed by SIGKILL when the rest was ended" in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process(command, tmp_path, number):
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('pids', os.getpid(), child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    launcher = command("run", "-n", "2", script)
    pids = [int(pid) for _ in range(2) for pid in launcher.stdout.readline().split()[2:]]
    launcher.signal(number)
    launcher.communicate()
    assert launcher.returncode == 130
    assert len(pids) == 4
    assert not survivors(pids, 10)


def test_a_killed_launcher_takes_its_ranks_with_it(command, tmp_path):
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('pid', os.getpid(), flush=True)\n"
        "time.sleep(600)\n"
    )
    launcher = command("run", "-n", "3", script)
    pids = [int(launcher.stdout.readline().split()[2]) for _ in range(3)]
    assert all(alive(pid) for pid in pids)
    launcher.kill()
    left = survivors(pids, 2)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    assert launcher.wait() == -signal.SIGKILL


def test_a_rank_whose_launcher_ended_before_it_started_does_not_start():
    leash = [sys.executable, str(Path(torchcomms.__file__).with_name("leash.py"))]
    started = subprocess.run(
        [*leash, str(os.getpid()), "echo", "ran"], capture_output=True, text=True, timeout=DEADLINE
    )
    assert (started.returncode, started.stdout) == (0, "ran\n")
    orphan = subprocess.run([*leash, "1", "echo", "ran"], capture_output=True, text=True, timeout=DEADLINE)
    assert (orphan.returncode, orphan.stdout) == (1, "")
    assert "process 1, ended before this rank started" in orphan.stderr


def survivors(pids, seconds):
    """Those of `pids` that still run after at most `seconds`."""
    until = time.monotonic() + seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        continue
    return [pid for pid in pids if alive(pid)]


def alive(pid):
    """Whether a process still runs; one that only waits to be collected does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_doctor_lists_the_backends(command):
    done = command("doctor")
    written, errors = done.communicate()
    assert done.returncode == 0, errors
    assert re.search(r"^inproc: usable: cpu tensors of every dtype", written, re.MULTILINE)
    assert re.search(r"^tcp: usable: .*notices deaths within 250 ms", written, re.MULTILINE)


def test_the_example_of_the_readme_runs(command, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script = tmp_path / "readme.py"
    script.write_text(blocks[0])
    done = command("run", "-n", "2", script)
    written, errors = done.communicate()
    assert done.returncode == 0, errors
    assert "[0] rank 0 of 2: [1.5, 1.5, 1.5]" in written


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(ranks, example):
    for rank in ranks(2, example):
        written, errors = rank.communicate()
        assert rank.returncode == 0, errors
        assert "done" in written
