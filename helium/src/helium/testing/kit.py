"""Runs the checks of the conformance kit and reports what ran, what could not be claimed and what failed."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from helium.contract import INTERFACE, is_name
from helium.testing import checks_artifact, checks_call
from helium.testing.case import Case
from helium.testing.subject import Broken, Check, Subject, Unclaimed

CHECKS: tuple[Check, ...] = (*checks_call.CHECKS, *checks_artifact.CHECKS)
"""Every check of a kernel, in the order in which they run."""


@dataclass(frozen=True, slots=True)
class Report:
    """Stable ids: of the checks that ran, and with a reason of those that could not be made and those that failed."""

    ran: tuple[str, ...]
    unclaimed: Mapping[str, str]
    failed: Mapping[str, str]


@dataclass(slots=True)
class _Tally:
    ran: list[str] = field(default_factory=list)
    unclaimed: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def report(self) -> Report:
        return Report(tuple(self.ran), self.unclaimed, self.failed)

    def add(self, id: str, clause: str, attempts: Iterable[Callable[[], None]]) -> None:
        outcomes = [_outcome(attempt) for attempt in attempts]
        broken = [reason for kind, reason in outcomes if kind == "broken"]
        skipped = [reason for kind, reason in outcomes if kind == "unclaimed"]
        if skipped and len(skipped) == len(outcomes):
            self.unclaimed[id] = skipped[0]
            return
        self.ran.append(id)
        if broken:
            self.failed[id] = f"{broken[0]} (contract: {clause})"


def check_kernel(kernel: Any, cases: Sequence[Case], *, target: str | None = None) -> Report:
    """Hold `kernel` to the contract, on every case.

    Args:
        kernel: A :class:`helium.contract.KernelCallable`.
        cases: At least one. The first reason of each failing check is reported.
        target: What to compile artifacts for; it must run on this machine. By default this machine without features.

    Raises:
        ValueError: `cases` is empty.
    """
    if not cases:
        raise ValueError("check_kernel needs at least one Case to call the kernel with")
    subjects = [Subject(kernel, case, target or f"{platform.machine().lower()}-{sys.platform}") for case in cases]
    tally = _Tally()
    for check in CHECKS:
        if "signatures" in tally.failed:
            tally.unclaimed[check.id] = "see signatures"
        else:
            tally.add(check.id, check.clause, [partial(check.run, subject) for subject in subjects])
    return tally.report()


def check_provider(provider: Any, names: Sequence[str]) -> Report:
    """Hold `provider` to the contract; `names` are kernels that it has, "namespace::kernel"."""
    tally = _Tally()
    for id, clause, check in PROVIDER_CHECKS:
        tally.add(id, clause, [partial(check, provider, names)])
    return tally.report()


def _outcome(attempt: Callable[[], None]) -> tuple[str, str]:
    try:
        attempt()
    except Unclaimed as error:
        return "unclaimed", str(error)
    except Broken as error:
        return "broken", str(error)
    except Exception as error:
        return "broken", f"raised {type(error).__name__}: {error}"
    return "passed", ""


def _provider_interface(provider: Any, names: Sequence[str]) -> None:
    value = getattr(provider, "interface", None)
    if not isinstance(value, tuple) or len(value) != 2 or value[0] != INTERFACE[0]:
        raise Broken(f"interface is {value!r}; this kit knows {INTERFACE}")


def _provider_namespace(provider: Any, names: Sequence[str]) -> None:
    value = getattr(provider, "namespace", None)
    if not isinstance(value, str) or not is_name(f"{value}::x"):
        raise Broken(f"namespace is {value!r}, not an identifier")


def _provider_finds(provider: Any, names: Sequence[str]) -> None:
    for name in names:
        found = provider.find(name)
        if found is None or found.name != name:
            raise Broken(f"find({name!r}) gave {'None' if found is None else 'the kernel ' + found.name}")


def _provider_unknown(provider: Any, names: Sequence[str]) -> None:
    for name in (f"{provider.namespace}::no_kernel_has_this_name", "another_namespace::kernel", "no colons"):
        if (found := provider.find(name)) is not None:
            raise Broken(f"find({name!r}) gave {found!r}")


PROVIDER_CHECKS = (
    ("provider-interface", "interface is (major, minor); an equal major is understood", _provider_interface),
    ("provider-namespace", "namespace is the part of a kernel's name before ::", _provider_namespace),
    ("provider-finds", "find gives the kernel of the whole name", _provider_finds),
    ("provider-unknown", "find gives None for a name that the provider does not have", _provider_unknown),
)
"""Every check of a provider: id, clause, function."""
