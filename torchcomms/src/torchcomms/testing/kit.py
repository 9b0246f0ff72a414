"""`check_backend`: run every check of the contract on worlds that a maker opens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from torchcomms.backend import Backend, Capabilities
from torchcomms.testing import collectives, core, endings, extras, faults, matrix, mismatches, reductions
from torchcomms.testing.report import Check, Make, Report, Unclaimed
from torchcomms.testing.world import World, results

CHECKS: tuple[Check, ...] = (
    *core.CHECKS,
    *endings.CHECKS,
    *collectives.CHECKS,
    *matrix.CHECKS,
    *reductions.CHECKS,
    *faults.CHECKS,
    *mismatches.CHECKS,
    *extras.CHECKS,
)


def check_backend(
    make: Make,
    *,
    capabilities: Capabilities | None = None,
    only: Sequence[str] = (),
    progress: Callable[[str], object] = lambda name: None,
) -> Report:
    """Check a backend against the contract.

    `make(size)` opens a world of that many ranks: `lambda size: ThreadWorld(MyBackend, size)`, or of ranks that are
    processes: `lambda size: ProcessWorld(MyBackend, size)`. Every check gets a world of its own. What the backend
    claims is read from its class unless `capabilities` is given. `only` are the ids, or groups of ids such as "core",
    to run; empty means all. `progress` is called with each id when its check begins. Never raises for a failing
    backend: the report says which checks failed and why.
    """
    return run_checks(CHECKS, make, capabilities, only, progress)


def run_checks(
    checks: Sequence[Check],
    make: Make,
    capabilities: Capabilities | None,
    only: Sequence[str],
    progress: Callable[[str], object] = lambda name: None,
) -> Report:
    """Run those of `checks` that are asked for, each on a world of its own."""
    wanted = [check for check in checks if not only or check.id in only or check.id.partition(".")[0] in only]
    ran: list[str] = []
    unclaimed: dict[str, str] = {}
    failed: dict[str, str] = {}
    facts: dict[str, object] = {}
    seen: list[tuple[str, Capabilities]] = []
    for check in wanted:
        progress(check.id)
        outcome, words = _attempt(check, make, capabilities, seen)
        if outcome == "unclaimed":
            unclaimed[check.id] = str(words)
            continue
        ran.append(check.id)
        if outcome == "failed":
            failed[check.id] = f"{check.clause} Seen: {words}"
        elif words is not None:
            facts[check.id] = words
    name, claimed = seen[-1] if seen else ("", capabilities)
    return Report(tuple(ran), unclaimed, failed, facts, name, claimed)


def _attempt(
    check: Check, make: Make, capabilities: Capabilities | None, seen: list[tuple[str, Capabilities]]
) -> tuple[str, object]:
    """How one check ended, and the reason or the fact."""
    world: World[Any] | None = None
    try:
        world = make(check.size)
        name, claimed = results(world, describe)[0]
        seen[:] = [(name, capabilities or claimed)]
        missing = f"this world has no {check.needs}()" if check.needs and not hasattr(world, check.needs) else ""
        reason = check.claim(capabilities or claimed) or missing
        return ("unclaimed", reason) if reason else ("ran", check.run(world))
    except Unclaimed as reason:
        return "unclaimed", reason
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    finally:
        if world is not None:
            with suppress(Exception):  # what close owes is a check of its own
                world.close()


def describe(member: Any) -> tuple[str, Capabilities]:
    """The name and the claims of a member's backend."""
    backend: Backend = member.get_backend_impl() if hasattr(member, "get_backend_impl") else member
    return backend.name, backend.capabilities()
