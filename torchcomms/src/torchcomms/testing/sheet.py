"""The capability sheet: one page in Markdown about a backend, of what it claims and what the kit has seen."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchcomms.discovery import find
from torchcomms.errors import NoRendezvous
from torchcomms.testing.operations import OPERATIONS, REDUCING
from torchcomms.testing.processes import ProcessWorld
from torchcomms.testing.report import Check, Make, Report
from torchcomms.testing.samples import all_dtypes
from torchcomms.testing.threads import ThreadWorld

if TYPE_CHECKING:
    from torchcomms.backend import Capabilities


def sheet(report: Report) -> str:
    """The page of a report of `check_backend`."""
    title = f"# Backend {report.name or 'of no name'}\n"
    claims = _claims(report.capabilities) if report.capabilities is not None else ["It could not be opened."]
    return "\n".join(
        [title, *claims, "", *_operations(report), "", *_behaviour(report), "", *_problems(report)]
    ).rstrip()


def print_sheet(name: str) -> int:
    """Run the kit on the installed backend `name` and print its page; 1 if a check fails.

    Ranks are processes, or threads where the backend has its ranks in one process only.
    """
    from torchcomms.testing.kit import CHECKS, check_backend

    find(name)
    make, shown = _worlds(name), sys.stderr.isatty()

    def progress(check: str) -> None:
        number = next(index for index, one in enumerate(CHECKS, 1) if one.id == check)
        if shown:
            print(f"\r\033[K{number} of {len(CHECKS)}: {check}", end="", file=sys.stderr, flush=True)

    report = check_backend(make, progress=progress)
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    print(report.sheet())
    return int(bool(report.failed))


def _worlds(name: str) -> Make:
    try:
        ProcessWorld(name, 2).close()
    except NoRendezvous:
        return lambda size: ThreadWorld(name, size)
    return lambda size: ProcessWorld(name, size)


def _claims(capabilities: Capabilities) -> list[str]:
    bound = capabilities.death_bound_ms
    facts = {
        "devices": ", ".join(sorted(capabilities.devices)),
        "dtypes": "all" if capabilities.dtypes is None else ", ".join(sorted(capabilities.dtypes)),
        "overrides": ", ".join(sorted(capabilities.native)) or "nothing: every operation is derived",
        "mismatches found": capabilities.mismatch,
        "death of a peer noticed": "no" if bound is None else f"within {bound:g} ms",
        "abort / windows": f"{_word(capabilities.abort)} / {_word(capabilities.windows)}",
        "stream-ordered / graph-capturable": (
            f"{_word(capabilities.stream_ordered)} / {_word(capabilities.graph_capturable)}"
        ),
    }
    return ["| claimed | |", "| --- | --- |", *(f"| {name} | {fact} |" for name, fact in facts.items())]


def _word(claimed: bool) -> str:
    return "yes" if claimed else "no"


def _operations(report: Report) -> list[str]:
    """Which dtypes each operation carries, and by which reductions: what the matrix has seen to work."""
    lines = ["| operation | dtypes and reductions seen to be right |", "| --- | --- |"]
    for operation in OPERATIONS:
        fact = report.facts.get(f"matrix.{operation}")
        seen = _grouped(fact, operation) if isinstance(fact, Mapping) else _without_fact(report, operation)
        lines.append(f"| {operation} | {seen} |")
    return lines


def _grouped(fact: Mapping[str, str], operation: str) -> str:
    """Dtypes of the same reductions in one group."""
    if operation not in REDUCING:
        return f"every one of {len(fact)} dtypes" if len(fact) == len(all_dtypes()) else ", ".join(fact)
    groups: dict[str, list[str]] = {}
    for dtype, ops in fact.items():
        groups.setdefault(ops, []).append(dtype)
    return "; ".join(f"{', '.join(dtypes)}: {ops}" for ops, dtypes in groups.items() if ops)


def _without_fact(report: Report, operation: str) -> str:
    return "FAILED" if f"matrix.{operation}" in report.failed else "not checked"


def _behaviour(report: Report) -> list[str]:
    """What each check of an ending, a fault or an extra has come to."""
    from torchcomms.testing.kit import CHECKS

    groups = ("core", "derived", "reduction", "fault", "mismatch", "memory", "express", "window")
    told = [check for check in CHECKS if check.id.partition(".")[0] in groups and _state(check, report)]
    lines = [f"| {check.id} | {check.clause} | {_state(check, report)} |" for check in told]
    return ["| check | clause | seen |", "| --- | --- | --- |", *lines]


def _state(check: Check, report: Report) -> str:
    if check.id in report.failed:
        return "FAILED"
    if check.id in report.unclaimed:
        return "not claimed"
    if check.id == "fault.death" and check.id in report.facts:
        return f"yes, last survivor after {report.facts[check.id]} ms"
    return "yes" if check.id in report.ran else ""


def _problems(report: Report) -> list[str]:
    lines = [f"- {check}: {reason}" for check, reason in report.failed.items()]
    return ["Failed:", "", *lines] if lines else [f"All {len(report.ran)} checks that it claims hold."]
