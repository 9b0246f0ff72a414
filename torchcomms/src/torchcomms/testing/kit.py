"""`check_backend`: run every check of the contract on worlds that a maker opens."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from torchcomms.backend import Capabilities
from torchcomms.testing import collectives, core, endings
from torchcomms.testing.report import Check, Make, Report
from torchcomms.testing.world import World

CHECKS: tuple[Check, ...] = (*core.CHECKS, *endings.CHECKS, *collectives.CHECKS)


def check_backend(make: Make, *, capabilities: Capabilities | None = None, only: Sequence[str] = ()) -> Report:
    """Check a backend against the contract.

    `make(size)` opens a world of that many ranks, for instance `lambda size: ThreadWorld(MyBackend, size)`; every check
    gets a world of its own. What the backend claims is read from its class unless `capabilities` is given. `only` are
    the ids to run; empty means all. Never raises for a failing backend: the report says which checks failed and why.
    """
    ran: list[str] = []
    unclaimed: dict[str, str] = {}
    failed: dict[str, str] = {}
    for check in CHECKS:
        if only and check.id not in only:
            continue
        ran.append(check.id)
        reason = _run(check, make, capabilities, unclaimed)
        if check.id in unclaimed:
            ran.pop()
        elif reason:
            failed[check.id] = f"{check.clause} Seen: {reason}"
    return Report(tuple(ran), unclaimed, failed)


def _run(check: Check, make: Make, capabilities: Capabilities | None, unclaimed: dict[str, str]) -> str:
    world: World | None = None
    try:
        world = make(check.size)
        reason = check.claim(capabilities or world.backends[0].capabilities())
        if reason:
            unclaimed[check.id] = reason
        else:
            check.run(world)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if world is not None:
            with suppress(Exception):  # what close owes is a check of its own
                world.close()
    return ""
