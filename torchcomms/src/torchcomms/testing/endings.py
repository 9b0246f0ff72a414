"""Checks of how a group ends: abort, death, leaving in order, close."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from torchcomms.backend import Backend, Capabilities
from torchcomms.errors import CommsAborted, CommsClosed, PeerFailed
from torchcomms.testing.core import claims_cpu, recv, run, send
from torchcomms.testing.report import Check, expect
from torchcomms.testing.world import World, in_background, soon

PROMPT = 5.0  # seconds; far below the deadline of the waits, far above what a busy machine needs


def abort_wakes(world: World) -> None:
    def wait(backend: Backend) -> None:
        if backend.rank == 0:
            ticket = backend.post([recv(torch.ones(2), 1, 20)])
            in_background(lambda: backend.abort("the kit says so"))
            ticket.wait_host(soon(4 * PROMPT))

    started = time.monotonic()
    outcome = world.run(wait)[0]
    expect(isinstance(outcome, CommsAborted), f"a wait in an aborted group gave {outcome!r}")
    expect("the kit says so" in str(outcome), "the error does not carry the reason of the abort")
    expect(time.monotonic() - started < PROMPT, "the wait returns late")


def death_named(world: World) -> None:
    expect(world.kill(2), "this world cannot kill a rank, though the backend claims to notice; give it a kill")

    def look(backend: Backend) -> frozenset[int]:
        until = soon(2.0)
        while backend.rank != 2 and not backend.lost() and time.monotonic() < until:
            continue
        return backend.lost() if backend.rank != 2 else frozenset()

    seen = world.run(look)
    expect(seen[:2] == [frozenset({2})] * 2, f"rank 2 of 3 died; lost() says {seen[:2]}")


def death_wakes(world: World) -> None:
    def wait(backend: Backend) -> None:
        if backend.rank == 2:
            world.kill(2)
        else:
            # Neither waits for the dead rank itself: whoever waits in the group learns of the death.
            backend.post([recv(torch.ones(2), 1 - backend.rank, 21)]).wait_host(soon(4 * PROMPT))

    started = time.monotonic()
    for rank, outcome in enumerate(world.run(wait)[:2]):
        expect(isinstance(outcome, PeerFailed), f"rank {rank}, waiting while rank 2 died, got {outcome!r}")
        expect(getattr(outcome, "ranks", None) == {2}, f"rank {rank} is not told that rank 2 died")
    expect(time.monotonic() - started < PROMPT, "the wait returns late")


def leaving_is_no_death(world: World) -> None:
    def leave(backend: Backend) -> object:
        if backend.rank == 1:
            run(backend, send(torch.full((2,), 3.0), 0, 22))
            backend.close()
            return None
        first = torch.zeros(2)
        run(backend, recv(first, 1, 22))
        try:
            run(backend, recv(torch.zeros(2), 1, 22))
        except PeerFailed as error:
            return float(first[0]), error.ranks, backend.lost()
        return "no error"

    outcome = world.run(leave)[0]
    wanted: tuple[float, frozenset[int], frozenset[int]] = (3.0, frozenset({1}), frozenset())
    expect(outcome == wanted, f"(value sent before close, ranks of the error, lost()) is {outcome!r}, not {wanted}")


def close_again(world: World) -> None:
    backend = world.backends[0]
    for _ in range(3):
        backend.close()


def closed_refuses(world: World) -> None:
    backend = world.backends[0]
    pending = backend.post([recv(torch.ones(1), 1, 23)])
    backend.close()
    expect(_refuses(lambda: run(backend, send(torch.ones(1), 0, 24))), "a post after close does not raise CommsClosed")
    expect(_refuses(lambda: pending.wait_host(soon())), "a ticket pending at close does not raise CommsClosed")


def _refuses(attempt: Callable[[], None]) -> bool:
    try:
        attempt()
    except CommsClosed:
        return True
    return False


def _aborts(capabilities: Capabilities) -> str:
    return claims_cpu(capabilities) or ("" if capabilities.abort else "capabilities().abort is false")


def _notices(capabilities: Capabilities) -> str:
    reason = "" if capabilities.death_bound_ms is not None else "capabilities().death_bound_ms is None"
    return claims_cpu(capabilities) or reason


CHECKS = (
    Check("core.abort", "abort makes every wait on this rank return at once.", abort_wakes, claim=_aborts),
    Check("core.lost", "lost() names the ranks known to be dead.", death_named, 3, _notices),
    Check("core.death_wakes", "A death ends every wait that is not complete.", death_wakes, 3, _notices),
    Check("core.leave", "Messages sent before close arrive; a rank that closed is not dead.", leaving_is_no_death),
    Check("core.close", "close is idempotent.", close_again),
    Check("core.closed", "After close, posts and pending tickets end with CommsClosed.", closed_refuses),
)
