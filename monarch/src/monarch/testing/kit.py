"""Runs the checks of the conformance kit and reports what ran, what was not claimed and what failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from monarch.spec import Launcher
from monarch.testing import checks_calls, checks_lifetime
from monarch.testing.expect import Broken, Check

CHECKS: tuple[Check, ...] = (*checks_calls.CHECKS, *checks_lifetime.CHECKS)
"""Every check, in the order in which they run."""


@dataclass(frozen=True, slots=True)
class Report:
    """Stable ids of the checks that ran, of those whose capability is unclaimed, and of the failed with a reason."""

    ran: tuple[str, ...]
    unclaimed: tuple[str, ...]
    failed: Mapping[str, str]


def check_launcher(make: Callable[[], Launcher], *, deadline: float = 30.0) -> Report:
    """Hold the launchers that `make` returns to the contract; each check has a new one and closes it.

    `deadline` is in seconds, for each check. No event loop may be running in the calling thread.
    """
    ran: list[str] = []
    unclaimed: list[str] = []
    failed: dict[str, str] = {}
    for check in CHECKS:
        launcher = make()
        if not _claimed(check, launcher):
            unclaimed.append(check.id)
            asyncio.run(_close(launcher))
            continue
        ran.append(check.id)
        if reason := asyncio.run(_outcome(check, launcher, deadline)):
            failed[check.id] = f"{reason} (contract: {check.clause})"
    return Report(tuple(ran), tuple(unclaimed), failed)


def _claimed(check: Check, launcher: Any) -> bool:
    if check.requires is not None and find_spec(check.requires) is None:
        return False
    return check.capability is None or check.capability in getattr(launcher, "capabilities", ())


async def _outcome(check: Check, launcher: Any, deadline: float) -> str:
    try:
        async with asyncio.timeout(deadline):
            await check.run(launcher)
    except Broken as error:
        return str(error)
    except TimeoutError:
        return f"not done after {deadline:g} s"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    finally:
        await _close(launcher)
    return ""


async def _close(launcher: Any) -> None:
    # What close does is the matter of the checks named close.*; here it only tidies up.
    with suppress(Exception):
        await launcher.close()
