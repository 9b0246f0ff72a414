"""Recovery: a group formed anew from survivors and joiners, in threads and in processes, and how a process ends."""

import signal
import socket
import threading
from datetime import timedelta

import pytest
import torch
from torch.distributed import TCPStore

import torchcomms
from torchcomms import CommsAborted, CommsTimeout, PeerFailed, ReduceOp
from torchcomms.errors import InvalidCall, InvalidState

SECONDS = timedelta(seconds=20)


class Exchange:
    """What ranks that are threads hand each other: handles by name, once `count` are there."""

    def __init__(self, count):
        self._handles, self._changed, self._count = {}, threading.Condition(), count

    def handles(self, name, comm):
        with self._changed:
            self._handles[name] = comm.get_init_handle()
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: len(self._handles) == self._count, 20)
        return self._handles


def total(comm):
    tensor = torch.ones(20_000)
    comm.all_reduce(tensor, ReduceOp.SUM)
    return tensor.mean().item()


@pytest.mark.unit
def test_survivors_go_on_without_the_dead_and_with_a_joiner(outcomes, backend):
    exchange, died = Exchange(4), threading.Event()

    def join():
        with torchcomms.new_comm(backend, "cpu", "joiner", enable_reconfigure=True, timeout=SECONDS) as comm:
            assert (comm.get_rank(), comm.get_size()) == (-1, 0)
            with pytest.raises(InvalidState, match="call reconfigure"):
                comm.barrier()
            return regroup(comm, "joiner")

    def regroup(comm, name):
        handles = exchange.handles(name, comm)
        # The joiner goes first and the ranks of the others are turned around.
        comm.reconfigure(7, [handles[one] for one in ("joiner", 3, 1, 0)], SECONDS).wait()
        assert not comm.is_aborted()
        found = comm.get_rank(), comm.get_size(), total(comm)
        child = comm.split([0, 3], "ends") if comm.get_rank() in (0, 3) else None
        comm.barrier()
        if child is not None:
            assert total(child) == 2
            child.finalize()
        comm.barrier()
        return found

    def run(comm):
        assert total(comm) == 4
        if comm.get_rank() == 2:
            comm.unsafe_get_backend().sever()
            died.set()
            return None
        late = comm.recv(torch.empty(1), (comm.get_rank() + 1) % 4, True)
        assert died.wait(20)
        with pytest.raises(PeerFailed):
            total(comm)
        with pytest.raises(PeerFailed):
            total(comm)
        found = regroup(comm, comm.get_rank())
        with pytest.raises((PeerFailed, CommsAborted)):
            late.wait()
        return found

    joined = []
    joiner = threading.Thread(target=lambda: joined.append(join()))
    joiner.start()
    found = outcomes(backend, 4, run)
    joiner.join()
    assert found == [(3, 4, 4.0), (2, 4, 4.0), None, (1, 4, 4.0)]
    assert joined == [(0, 4, 4.0)]


@pytest.mark.unit
def test_after_a_mismatch_or_an_abort_the_same_object_goes_on_with_a_set_of_handles(world, backend):
    exchange = Exchange(2)

    def run(comm):
        with pytest.raises(torchcomms.CollectiveMismatch):
            comm.barrier() if comm.get_rank() else comm.broadcast(torch.ones(1), 0)
        handles = exchange.handles(comm.get_rank(), comm)
        ranks = []
        for attempt in range(2):
            comm.reconfigure(attempt, set(handles.values()), SECONDS)
            ranks.append(sorted(handles.values()).index(comm.get_init_handle()) == comm.get_rank())
            assert total(comm) == 2
            comm.abort()
            with pytest.raises(CommsAborted):
                comm.barrier()
        return ranks

    assert world(backend, 2, run) == [[True, True]] * 2


@pytest.mark.unit
def test_members_that_do_not_come_are_named_and_a_second_attempt_is_free(world, backend):
    exchange, later = Exchange(3), threading.Barrier(3)

    def run(comm):
        rank = comm.get_rank()
        handles = [handle for _, handle in sorted(exchange.handles(rank, comm).items())]
        if rank < 2:
            with pytest.raises(CommsTimeout) as caught:
                comm.reconfigure(1, handles, timedelta(seconds=0.3))
            assert 2 in caught.value.missing
            with pytest.raises(InvalidState):
                comm.barrier()
        later.wait(20)
        comm.reconfigure(2, handles, SECONDS)
        return total(comm)

    assert world(backend, 3, run) == [3.0] * 3


@pytest.mark.unit
def test_what_reconfigure_refuses(world):
    def run(comm):
        mine = comm.get_init_handle()
        for handles in ([], ["somebody"], [mine, mine]):
            with pytest.raises(InvalidCall, match="must be different and have this rank's"):
                comm.reconfigure(1, handles)
        with pytest.raises(InvalidCall, match="1 members are fewer than the minimum of 2"):
            comm.reconfigure(1, [mine])
        with pytest.raises(InvalidCall, match="'nonsense' is no init handle"):
            comm.reconfigure(1, ["nonsense", mine])

    world("inproc", 1, run, min_size=2)


TRAINER = """
import os, sys, time
from datetime import timedelta
import torch, torchcomms
from torch.distributed import TCPStore
torch.set_num_threads(1)
backend, port, name = sys.argv[1], int(sys.argv[2]), os.environ.get("RANK", "joiner")
board = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)  # where handles are exchanged
late = name == "joiner"
device, seconds = torch.device("cpu"), timedelta(seconds=60)
comm = torchcomms.new_comm(backend, device, "train", timeout=seconds, enable_reconfigure=late)
torch.manual_seed(0 if late else 1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.25 if late else 0.01)
done = 0

def regroup():
    board.set(f"handle/{name}", comm.get_init_handle())
    order = ["1", "2", "joiner"]
    comm.reconfigure(1, [board.get(f"handle/{one}").decode() for one in order], seconds)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
    return comm.sync_state(state, 0)

if late:
    state = regroup()
    optimizer.load_state_dict(state["optimizer"])
    done = state["done"]
while done < 15:
    optimizer.zero_grad()
    model(torch.full((3, 4), done / 100)).square().sum().backward()
    try:
        comm.all_reduce_coalesced([one.grad for one in model.parameters()], torchcomms.ReduceOp.AVG)
    except torchcomms.PeerFailed as error:
        if not late and comm.get_size() == 3:
            print("lost", sorted(error.ranks), flush=True)
            regroup()
            continue
        raise
    optimizer.step()
    done += 1
    if done == 5:
        print("going", flush=True)
        if name == "0":
            time.sleep(600)
print("end", done, comm.get_rank(), comm.get_size(), repr(model.weight.sum().item()), flush=True)
comm.finalize()
"""


@pytest.mark.system
@pytest.mark.parametrize("kind", ["tcp", "shm"])
def test_a_killed_process_is_replaced_and_training_goes_on(start, tmp_path, kind):
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    board = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # Rank 0, which is to die, hosts the store where they met.
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "3"}
    trainers = [start(script, kind, board.port, RANK=str(rank), **meeting) for rank in range(3)]
    for trainer in trainers:
        assert trainer.stdout.readline() == "going\n"
    trainers[0].kill()
    joiner = start(script, kind, board.port)
    ends = []
    for trainer in [*trainers[1:], joiner]:
        written, errors = trainer.communicate()
        assert trainer.returncode == 0, errors
        ends.append(written.splitlines()[-1].split())
    assert [end[:4] for end in ends] == [["end", "15", str(rank), "3"] for rank in range(3)]
    assert len({end[4] for end in ends}) == 1


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


ABORTS = """
import sys, time
from datetime import timedelta
import torch, torchcomms
torch.set_num_threads(1)
comm = torchcomms.new_comm(
    "tcp", torch.device("cpu"), "fatal", abort_process_on_timeout_or_error=True, hints={"trace_dir": sys.argv[1]}
)
comm.barrier(False)
if comm.get_rank() == 1:
    print("here", flush=True)
    sys.stdin.read()
comm.all_reduce(torch.ones(2), torchcomms.ReduceOp.SUM, False, timeout=timedelta(seconds=0.2))
"""


@pytest.mark.system
def test_a_process_ends_on_a_timeout_if_it_is_asked_to_and_leaves_its_records(ranks, tmp_path):
    script = tmp_path / "fatal.py"
    script.write_text(ABORTS)
    fatal, _ = ranks(2, script, str(tmp_path / "records"))
    _, errors = fatal.communicate()
    assert fatal.returncode == -signal.SIGABRT
    assert "communicator 'fatal' ends this process: all_reduce(#2" in errors
    assert [path.name for path in (tmp_path / "records").iterdir()] == ["fatal.0.json"]
