"""Checks of how a group ends: abort, death, leaving in order, close; and of groups opened again over one store."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torchcomms.backend import Backend, Capabilities
from torchcomms.errors import CommsAborted, CommsClosed, CommsTimeout, PeerFailed
from torchcomms.testing.messages import move, recv, run, send
from torchcomms.testing.report import Check, expect
from torchcomms.testing.world import World, in_background, results, run_and_kill, soon

_COUNTING = threading.Lock()
PROMPT = 5.0  # seconds; far below the deadline of the waits, far above what a busy machine needs


def abort_wakes(world: World[Backend]) -> None:
    started = time.monotonic()
    outcome = world.run(_abort)[0]
    expect(isinstance(outcome, CommsAborted), f"a wait in an aborted group gave {outcome!r}")
    expect("the kit says so" in str(outcome), "the error does not carry the reason of the abort")
    expect(time.monotonic() - started < PROMPT, "the wait returns late")


def _abort(backend: Backend) -> None:
    if backend.rank == 0:
        ticket = backend.post([recv(torch.ones(2, device=backend.device), 1, 20)])
        in_background(lambda: backend.abort("the kit says so"))
        ticket.wait_host(soon(4 * PROMPT))


def death_named(world: World[Backend]) -> None:
    expect(world.kill(2), "this world cannot kill a rank, though the backend claims to notice; give it a kill")
    seen = world.run(_look)
    expect(seen[:2] == [frozenset({2})] * 2, f"rank 2 of 3 died; lost() says {seen[:2]}")


def _look(backend: Backend) -> frozenset[int]:
    until = soon(2.0)
    while backend.rank != 2 and not backend.lost() and time.monotonic() < until:
        continue
    return backend.lost() if backend.rank != 2 else frozenset()


def death_wakes(world: World[Backend]) -> None:
    started = time.monotonic()
    outcomes, _ = run_and_kill(world, _wait_for_each_other, 2, 0.02)
    for rank, outcome in enumerate(outcomes[:2]):
        expect(isinstance(outcome, PeerFailed), f"rank {rank}, waiting while rank 2 died, got {outcome!r}")
        expect(getattr(outcome, "ranks", None) == {2}, f"rank {rank} is not told that rank 2 died")
    expect(time.monotonic() - started < PROMPT, "the wait returns late")


def _wait_for_each_other(backend: Backend) -> None:
    # Neither waits for the dead rank itself: whoever waits in the group learns of the death.
    if backend.rank != 2:
        waited = recv(torch.ones(2, device=backend.device), 1 - backend.rank, 21)
        backend.post([waited]).wait_host(soon(4 * PROMPT))


def leaving_is_no_death(world: World[Backend]) -> None:
    outcome = world.run(_leave)[0]
    wanted: tuple[float, frozenset[int], frozenset[int]] = (3.0, frozenset({1}), frozenset())
    expect(outcome == wanted, f"(value sent before close, ranks of the error, lost()) is {outcome!r}, not {wanted}")


def _leave(backend: Backend) -> object:
    tensor = torch.full((2,), 3.0 * backend.rank, device=backend.device)
    if backend.rank == 1:
        run(backend, send(tensor, 0, 22))
        backend.close()
        return None
    run(backend, recv(tensor, 1, 22))
    try:
        run(backend, recv(torch.zeros_like(tensor), 1, 22))
    except PeerFailed as error:
        return float(tensor[0]), error.ranks, backend.lost()
    return "no error"


def close_again(world: World[Backend]) -> None:
    results(world, _close_thrice)


def _close_thrice(backend: Backend) -> None:
    for _ in range(3 if backend.rank == 0 else 0):
        backend.close()


def closed_refuses(world: World[Backend]) -> None:
    posted, pending = results(world, _use_closed)[0]
    expect(posted, "a post after close does not raise CommsClosed")
    expect(pending, "a ticket pending at close does not raise CommsClosed")


def _use_closed(backend: Backend) -> tuple[bool, bool]:
    if backend.rank:
        return True, True
    tensor = torch.ones(1, device=backend.device)
    pending = backend.post([recv(tensor.clone(), 1, 23)])
    backend.close()
    refused = _refuses(lambda: run(backend, send(tensor, 0, 24)))
    return refused, _refuses(lambda: pending.wait_host(soon()))


def _refuses(attempt: Callable[[], None]) -> bool:
    try:
        attempt()
    except CommsClosed:
        return True
    return False


def opened_again(world: World[Backend]) -> None:
    for number in range(10):
        again = world.open()  # type: ignore[attr-defined]
        sent = torch.full((3,), float(number))
        try:
            arrived = results(again, partial(move, sent, tag=26))[1]
        finally:
            again.close()
        expect(torch.equal(arrived, sent), f"group {number + 1} over one store delivers other values")


def epochs_apart(world: World[Backend]) -> None:
    results(world, _leave_a_message)
    later = world.open(epoch=1)  # type: ignore[attr-defined]
    try:
        arrived = results(later, partial(move, torch.full((2,), 2.0), tag=25))[1]
    finally:
        later.close()
    expect(float(arrived[0]) == 2.0, "a message of epoch 0 arrives in epoch 1")


def _leave_a_message(backend: Backend) -> None:
    if backend.rank == 0:
        run(backend, send(torch.ones(2, device=backend.device), 1, 25))


def missing_at_open(world: World[Backend]) -> None:
    started, seen = time.monotonic(), None
    try:
        world.open(ranks=[0, 1], timeout=0.15).close()  # type: ignore[attr-defined]
    except Exception as error:
        seen = error
    expect(isinstance(seen, CommsTimeout), f"an open without rank 2 gave {seen!r}")
    expect(getattr(seen, "missing", None) == {2}, f"the error does not name rank 2 alone as missing: {seen}")
    expect(time.monotonic() - started < PROMPT, "open outlasts its timeout by seconds")


def nothing_left(world: World[Backend]) -> None:
    world.open().close()  # type: ignore[attr-defined]
    before = held_after_collecting(world)
    for _ in range(5):
        world.open().close()  # type: ignore[attr-defined]
    after = results(world, held)
    expect(after == before, f"(descriptors, threads) of the ranks went from {before} to {after} over five groups")


def held_after_collecting(world: World[Any]) -> list[tuple[int, int]]:
    """What each rank holds, when what others have left to the collector is gone."""
    results(world, _collect)
    return results(world, held)


def _collect(member: object) -> None:
    gc.collect()


def held(member: object) -> tuple[int, int]:
    """Descriptors and threads of this rank's process, less the threads that ranks of a world are."""
    folder = Path("/proc/self/fd")
    with _COUNTING:  # listing the folder takes a descriptor too
        descriptors = len(os.listdir(folder)) if folder.exists() else 0
    return descriptors, sum(not thread.name.startswith("rank") for thread in threading.enumerate())


def aborts(capabilities: Capabilities) -> str:
    return "" if capabilities.abort else "capabilities().abort is false"


def notices(capabilities: Capabilities) -> str:
    """Why the backend does not claim to notice deaths, or ""."""
    return "" if capabilities.death_bound_ms is not None else "capabilities().death_bound_ms is None"


CHECKS = (
    Check("core.abort", "abort makes every wait on this rank return at once.", abort_wakes, claim=aborts),
    Check("core.lost", "lost() names the ranks known to be dead.", death_named, 3, notices),
    Check("core.death_wakes", "A death ends every wait that is not complete.", death_wakes, 3, notices),
    Check("core.leave", "Messages sent before close arrive; a rank that closed is not dead.", leaving_is_no_death),
    Check("core.close", "close is idempotent.", close_again),
    Check("core.closed", "After close, posts and pending tickets end with CommsClosed.", closed_refuses),
    Check("core.reopen", "Repeated opens over one store are told apart by their order.", opened_again, needs="open"),
    Check("core.epoch", "What an epoch has sent does not arrive in another.", epochs_apart, needs="open"),
    Check("core.missing", "open names the ranks that did not come in time.", missing_at_open, 3, needs="open"),
    Check("core.leaks", "close leaves no descriptor and no thread.", nothing_left, needs="open"),
)
