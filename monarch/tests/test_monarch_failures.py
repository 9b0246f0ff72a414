"""Failures of real processes: deaths, constructors, exits, the controller's own end; nothing is left, nothing hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monarch.actor import (
    Actor,
    ActorDied,
    ActorGone,
    ActorMesh,
    CallFailed,
    ConstructorError,
    EndpointError,
    ProcMesh,
    current_rank,
    endpoint,
    this_host,
)

pytestmark = pytest.mark.system

LONG = 30.0


class TwoArguments(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class HoldsALock(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Own(ValueError):
    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Victim(Actor):
    def __init__(self, fail_on: int = -1) -> None:
        self.released = threading.Event()
        if current_rank().rank == fail_on:
            raise FileNotFoundError(2, "no weights", "model.safetensors")

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
    def fail(self, kind: str) -> None:
        if kind == "two":
            raise TwoArguments("one", "two")
        if kind == "lock":
            raise HoldsALock("held")
        if kind == "own":
            error = Own("mine", 7)
            error.add_note("a note")
            raise error
        raise KeyError(kind)

    @endpoint
    def fail_on(self, rank: int) -> int:
        if current_rank().rank == rank:
            raise ValueError(f"rank {rank} says no")
        return current_rank().rank

    @endpoint
    def leave(self, code: Any) -> None:
        print("last words", file=sys.stderr)
        sys.exit(code)

    @endpoint
    def say(self, text: str) -> None:
        print(text)
        print(text + " (err)", file=sys.stderr)


@pytest.fixture
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"procs": 4})
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


# --- deaths -----------------------------------------------------------------------------------------------------


def test_killed_rank_fails_the_call_and_the_second_is_reported_as_fast(victims: ActorMesh[Victim]) -> None:
    pids = victims.pid.call().get(LONG).values()
    for killed in (1, 2):
        part = victims if killed == 1 else victims.slice(procs=slice(2, 4))
        others = {0, 2, 3} if killed == 1 else {3}
        future = part.hang.call()
        os.kill(pids[killed], signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(CallFailed, match=rf"'procs': {killed}\}} was killed by SIGKILL") as caught:
            future.get(LONG)
        assert time.monotonic() - begin < 1
        (error,) = caught.value.exceptions
        assert isinstance(error, ActorDied)
        assert (error.signal, error.exit_code, dict(error.rank)) == (9, None, {"hosts": 0, "procs": killed})
        assert caught.value.errors == {killed: error}
        assert set(caught.value.pending) == others
    assert victims.slice(procs=0).ping.call_one().get(LONG) == "pong"


def test_calls_after_a_death_fail_at_once_and_did_not_run(victims: ActorMesh[Victim]) -> None:
    one = victims.slice(procs=3)
    os.kill(one.pid.call_one().get(LONG), signal.SIGKILL)
    assert isinstance(one.hang.call_one().exception(LONG), ActorDied)
    error = one.ping.call_one().exception(LONG)
    assert isinstance(error, ActorGone)
    assert "which did not run" in str(error)
    assert isinstance(error, ConnectionError)
    assert isinstance(one.ping.broadcast().exception(LONG), ActorGone)


def test_results_errors_and_pending_are_by_rank(victims: ActorMesh[Victim]) -> None:
    with pytest.raises(
        CallFailed, match=r"failed on 1 of 4 ranks; first: .*'procs': 2\} raised ValueError: rank 2"
    ) as c:
        victims.fail_on.call(2).get(LONG)
    assert c.value.results == {0: 0, 1: 1, 3: 3}
    assert (list(c.value.errors), c.value.pending) == ([2], ())
    matching, _ = c.value.split(ValueError)
    assert isinstance(matching, CallFailed)
    assert matching.results == c.value.results


def test_exit_of_an_endpoint_is_a_death_with_its_code_and_last_output(victims: ActorMesh[Victim]) -> None:
    error = victims.slice(procs=0).leave.call_one(3).exception(LONG)
    assert isinstance(error, ActorDied)
    assert (error.exit_code, error.signal, error.last_output) == (3, None, ("last words",))
    assert "exited with code 3" in str(error)
    assert "last words" in str(error)


@pytest.mark.parametrize(("code", "status"), [(None, 0), ("text", 1)])
def test_exit_codes_are_those_of_the_interpreter(victims: ActorMesh[Victim], code: Any, status: int) -> None:
    error = victims.slice(procs=0).leave.call_one(code).exception(LONG)
    assert isinstance(error, ActorDied)
    assert error.exit_code == status


def test_awaited_call_sees_a_death(victims: ActorMesh[Victim]) -> None:
    async def main() -> None:
        future = victims.slice(procs=0).hang.call_one()
        os.kill(await victims.slice(procs=1).pid.call_one(), signal.SIGKILL)
        with pytest.raises(CallFailed, match="SIGKILL"):
            await victims.hang.call()
        future.cancel()

    asyncio.run(main())


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "text"), [("two", "TwoArguments", "one and two"), ("lock", "HoldsALock", "held")]
)
def test_exception_that_cannot_travel_arrives_as_text(
    victims: ActorMesh[Victim], kind: str, name: str, text: str
) -> None:
    one = victims.slice(procs=0)
    error = one.fail.call_one(kind).exception(LONG)
    assert isinstance(error, EndpointError)
    assert error.type_name.endswith(name)
    assert (error.message, error.original) == (text, None)
    assert f"raise {name}(" in error.remote_traceback
    assert one.ping.call_one().get(LONG) == "pong"


def test_exception_that_can_travel_has_its_own_type_too(victims: ActorMesh[Victim]) -> None:
    with pytest.raises(Own, match=r"victims\.fail on .*'procs': 1\} raised .*Own: mine") as caught:
        victims.slice(procs=1).fail.call_one("own").get(LONG)
    error: Any = caught.value
    assert isinstance(error, EndpointError)
    assert (error.code, type(error.original), error.original.code) == (7, Own, 7)
    assert error.__notes__[0] == "a note"
    assert "in fail" in error.__notes__[1]


def test_builtin_exception_is_caught_as_itself(victims: ActorMesh[Victim]) -> None:
    with pytest.raises(KeyError):
        victims.slice(procs=1).fail.call_one("key").get(LONG)


def test_constructor_that_raises_on_one_rank_is_that_ranks_error(procs: ProcMesh) -> None:
    victims = procs.spawn("victims", Victim, 2)
    with pytest.raises(CallFailed, match=r"first: the constructor of victims on .*'procs': 2\} raised") as caught:
        victims.ping.call().get(LONG)
    (error,) = caught.value.exceptions
    assert isinstance(error, ConstructorError)
    assert isinstance(error, FileNotFoundError)
    assert error.remote_traceback.count("in __init__") == 1
    assert set(caught.value.results) == {0, 1, 3}
    with pytest.raises(ConstructorError, match="no weights"):
        victims.slice(procs=2).pid.call_one().get(LONG)
    with pytest.raises(CallFailed, match="no weights"):
        victims.initialized.get(LONG)


def test_error_of_a_broadcast_goes_to_the_output(victims: ActorMesh[Victim], capfd: pytest.CaptureFixture[str]) -> None:
    one = victims.slice(procs=0)
    one.fail.broadcast("nobody awaits this")
    assert one.ping.call_one().get(LONG) == "pong"
    shown = ""

    def arrived() -> bool:
        nonlocal shown
        shown += capfd.readouterr().err
        return "KeyError: 'nobody awaits this'" in shown

    eventually(arrived, "the error was not shown")
    assert "[victims hosts=0 procs=0] KeyError" in shown


# --- output -----------------------------------------------------------------------------------------------------


def test_output_is_prefixed_with_actor_and_coordinates(
    victims: ActorMesh[Victim], capsys: pytest.CaptureFixture[str]
) -> None:
    victims.slice(procs=3).say.call_one("hello\nworld").get(LONG)
    victims.stop()
    out, err = "", ""

    def all_here() -> bool:
        nonlocal out, err
        more = capsys.readouterr()
        out, err = out + more.out, err + more.err
        return "world" in out and "(err)" in err

    eventually(all_here, "output did not come")
    assert out == "[victims hosts=0 procs=3] hello\n[victims hosts=0 procs=3] world\n"
    assert err == "[victims hosts=0 procs=3] hello\n[victims hosts=0 procs=3] world (err)\n"


def test_output_can_be_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    with this_host().spawn_procs(output=False) as procs:
        procs.spawn("quiet", Victim).say.call_one("hello").get(LONG)
    assert capsys.readouterr().out == ""


# --- control ---------------------------------------------------------------------------------------------------


def test_busy_and_dead_processes_answer_control(victims: ActorMesh[Victim], procs: ProcMesh) -> None:
    hanging = victims.slice(procs=1).hang.call_one()
    os.kill(victims.slice(procs=0).pid.call_one().get(LONG), signal.SIGKILL)
    assert isinstance(victims.slice(procs=0).hang.call_one().exception(LONG), ActorDied)
    assert procs.ping().get(LONG).values() == [None, True, True, True]
    stacks = procs.stacks().get(LONG)
    assert "in hang\n    self.released.wait(LONG)" in stacks.item(procs=1)
    assert "in hang" not in stacks.item(procs=2)
    assert not hanging.done()
