"""Ends: stopping, leaving scopes, and the controller's own death; no process and no descriptor is left."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monarch.actor import Actor, ActorMesh, ActorStopped, ProcMesh, endpoint, this_host

pytestmark = pytest.mark.system

LONG = 30.0


class Victim(Actor):
    def __init__(self) -> None:
        self.released = threading.Event()

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def hang(self) -> None:
        self.released.wait(LONG)

    @endpoint
    async def ping(self) -> str:
        return "pong"

    @endpoint
    def start_child(self) -> int:
        return subprocess.Popen(["sleep", "600"], start_new_session=True).pid


class Tidy(Actor):
    def __init__(self, path: str) -> None:
        atexit.register(Path(path).write_text, "tidied")

    @endpoint
    def nothing(self) -> None:
        pass


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"procs": 2})
    yield mesh
    mesh.stop(0).get(LONG)


@pytest.fixture
def victims(procs: ProcMesh) -> ActorMesh[Victim]:
    mesh = procs.spawn("victims", Victim)
    mesh.initialized.get(LONG)
    return mesh


def eventually(holds: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
    """Wait for a fact of the operating system that nothing announces."""
    deadline, tick = time.monotonic() + seconds, threading.Event()
    while not holds():
        assert time.monotonic() < deadline, what
        tick.wait(0.01)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


# --- stopping ---------------------------------------------------------------------------------------------------


def test_stopped_mesh_fails_calls_and_stop_is_idempotent(procs: ProcMesh, victims: ActorMesh[Victim]) -> None:
    pids = victims.pid.call().get(LONG).values()
    procs.stop().get(LONG)
    procs.stop().get(LONG)
    assert all(gone(pid) for pid in pids)
    assert isinstance(victims.slice(procs=0).ping.call_one().exception(LONG), ActorStopped)


def test_stop_ends_a_process_that_does_not_finish(victims: ActorMesh[Victim], procs: ProcMesh) -> None:
    hanging = victims.slice(procs=0).hang.call_one()
    procs.stop(grace=0.05).get(LONG)
    assert isinstance(hanging.exception(LONG), ActorStopped)


def test_stop_lets_the_running_endpoint_finish_and_runs_exit_handlers(tmp_path: Path) -> None:
    with this_host().spawn_procs() as procs:
        procs.spawn("tidy", Tidy, str(tmp_path / "left")).initialized.get(LONG)
    assert (tmp_path / "left").read_text() == "tidied"


def test_actors_children_end_with_it(victims: ActorMesh[Victim]) -> None:
    one = victims.slice(procs=0)
    child, pid = one.start_child.call_one().get(LONG), one.pid.call_one().get(LONG)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: gone(child), "a grandchild outlived its actor")


def test_no_descriptor_or_process_is_left(victims: ActorMesh[Victim], procs: ProcMesh) -> None:
    def round_trip() -> list[int]:
        with this_host().spawn_procs({"procs": 2}) as more:
            return more.spawn("v", Victim).pid.call().get(LONG).values()

    round_trip()
    before = len(os.listdir("/proc/self/fd"))
    pids = [pid for _ in range(3) for pid in round_trip()]
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(gone(pid) for pid in pids)


# --- the controller's own end -----------------------------------------------------------------------------------

SCRIPT = """
import os, subprocess, sys, time
from monarch.actor import Actor, endpoint, this_host

class Parent(Actor):
    @endpoint
    def pids(self):
        child = subprocess.Popen(["sleep", "600"], start_new_session=True).pid
        self.mesh = this_host().spawn_procs({"inner": 1})
        inner = self.mesh.spawn("inner", Leaf).pid.call_one().get(20)
        return [os.getpid(), child, inner]
    @endpoint
    def hang(self):
        time.sleep(600)

class Leaf(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

with this_host().spawn_procs({"procs": 2}) as procs:
    parents = procs.spawn("parents", Parent)
    pids = sum(parents.pids.call().get(20), start=[])
    print(*pids, flush=True)
    parents.hang.call().get(60)
"""


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    path = tmp_path / "controller.py"
    path.write_text(SCRIPT)
    process = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 6
    yield process, pids
    process.kill()
    process.communicate()


def test_killed_controller_leaves_nothing(controller: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, pids = controller
    process.kill()
    begin = time.monotonic()
    for pid in pids:
        eventually(lambda pid=pid: gone(pid), f"process {pid} outlived the controller")  # type: ignore[misc]
    assert time.monotonic() - begin < 2


def test_interrupt_leaves_nothing_and_exits_as_interrupts_do(
    controller: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, pids = controller
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LONG)
    # Ended by the signal itself: a shell shows that as 130.
    assert process.returncode == -signal.SIGINT
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert all(gone(pid) for pid in pids)
