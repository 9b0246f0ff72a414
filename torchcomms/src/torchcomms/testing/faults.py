"""Checks of what ends a collective: a death in the middle, an abort in the middle, a rank that comes late."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from torchcomms.backend import Backend, ReduceOp
from torchcomms.errors import CommsAborted, CommsTimeout, PeerFailed
from torchcomms.testing.endings import PROMPT, aborts, notices
from torchcomms.testing.operations import finish
from torchcomms.testing.report import Check, expect
from torchcomms.testing.world import World, in_background, results, run_and_kill, soon

RANKS = 4
VICTIM = 2
LONG = 1 << 20  # elements: an operation of milliseconds
LATE = 0.1  # seconds that the others wait for a rank that is late


def until_it_fails(count: int, backend: Backend) -> tuple[BaseException, float]:
    """Reduce for ever; the error in the end, and the monotonic second at which it came."""
    tensor, until = torch.ones(count, device=backend.device), soon(4 * PROMPT)
    try:
        while time.monotonic() < until:
            finish(backend.all_reduce(tensor, ReduceOp.AVG))
    except Exception as error:
        return error, time.monotonic()
    return TimeoutError("nothing failed"), time.monotonic()


def death_in_the_middle(world: World[Backend]) -> float:
    """Milliseconds until the last survivor had its error."""
    outcomes, killed = run_and_kill(world, partial(until_it_fails, LONG), VICTIM, random.uniform(0.02, 0.06))
    worst = 0.0
    for rank, outcome in enumerate(outcomes):
        if rank != VICTIM:
            expect(isinstance(outcome, tuple), f"survivor {rank} raised {outcome!r}")
            error, moment = outcome if isinstance(outcome, tuple) else (outcome, killed)
            expect(isinstance(error, PeerFailed), f"survivor {rank} of a death in a collective got {error!r}")
            expect(VICTIM in getattr(error, "ranks", ()), f"survivor {rank} is not told who died: {error}")
            worst = max(worst, moment - killed)
    expect(worst < PROMPT, f"a survivor has its error {worst:.1f} s after the death")
    return round(1e3 * worst, 2)


def abort_in_the_middle(world: World[Backend]) -> None:
    started = time.monotonic()
    for rank, (error, _) in enumerate(results(world, _aborting)):
        wanted = isinstance(error, (CommsAborted, PeerFailed))
        expect(wanted, f"rank {rank}, whose group was aborted in a collective, got {error!r}")
    expect(time.monotonic() - started < PROMPT, "the waits return late")


def _aborting(backend: Backend) -> tuple[BaseException, float]:
    def abort() -> None:
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            continue
        backend.abort("the kit says so")

    in_background(abort)
    return until_it_fails(LONG // 8, backend)


def late_in(operation: str, world: World[Backend]) -> None:
    """Rank 2 comes late: the others are told so, and complete when it has come."""
    outcomes = results(world, partial(_come_late, operation))
    told = {rank: missing for rank, (missing, _) in enumerate(outcomes) if rank != VICTIM}
    # A rank may wait for one that itself waits for the late one, and can name only the former.
    named = all(missing and rank not in missing for rank, missing in told.items())
    expect(named and any(VICTIM in missing for missing in told.values()), f"{operation}: missing by rank is {told}")
    for rank, (_, value) in enumerate(outcomes):
        expect(value == world.size, f"{operation}: after the late rank has come, rank {rank} holds {value}")


def _come_late(operation: str, backend: Backend) -> tuple[frozenset[int], float]:
    tensor = torch.ones(8, device=backend.device)
    if backend.rank == VICTIM:
        until = time.monotonic() + 3 * LATE
        while time.monotonic() < until:
            continue
    ticket = backend.barrier() if operation == "barrier" else backend.all_reduce(tensor, ReduceOp.SUM)
    missing: frozenset[int] = frozenset()
    try:
        ticket.wait_host(time.monotonic() + (LATE if backend.rank != VICTIM else backend.timeout))
    except CommsTimeout as error:
        missing = error.missing
        ticket.wait_host(soon())
    return missing, float(tensor[0]) if operation != "barrier" else float(backend.size)


def closed_in_the_middle(world: World[Backend]) -> None:
    """A rank that closes while the others still need it is named to them."""
    for rank, outcome in enumerate(world.run(_leave_early)):
        if rank != VICTIM:
            expect(isinstance(outcome, PeerFailed), f"rank {rank}, needing a rank that closed, got {outcome!r}")


def _leave_early(backend: Backend) -> None:
    if backend.rank == VICTIM:
        backend.close()
        return
    tensor, deadline = torch.ones(LONG // 8, device=backend.device), soon(2 * PROMPT)
    for _ in range(3):
        backend.all_reduce(tensor, ReduceOp.SUM, deadline=deadline).wait_host(deadline)


def _check(name: str, clause: str, function: Callable[[World[Backend]], object]) -> Check:
    return Check(f"fault.{name}", clause, function, RANKS, notices)


CHECKS: Sequence[Check] = (
    _check("death", "A death in a collective is named to every survivor at once.", death_in_the_middle),
    Check("fault.abort", "abort ends a collective at once.", abort_in_the_middle, RANKS, aborts),
    Check(
        "fault.late", "all_reduce names the ranks that have not come, and goes on.", partial(late_in, "all_reduce"), 4
    ),
    Check(
        "fault.late_barrier", "barrier names the ranks that have not come, and goes on.", partial(late_in, "barrier"), 4
    ),
    _check("left", "A rank that closes while it is needed fails the others' collectives.", closed_in_the_middle),
)
