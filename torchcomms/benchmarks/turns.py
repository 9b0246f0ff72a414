"""Cases measured in rounds in which the libraries take turns, and the table of what came out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import results
import torch
from limits import Limit
from world import HELP, Case, Failed, Refused, World, spread, versions, worlds

ROUNDS = 7
MPI = ("MPICH", "Open MPI")
UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
MOST = 0.25  # seconds that a library may take for one turn: what is slower makes fewer calls


def size_name(count: int) -> str:
    """Bytes in words."""
    return next(f"{count // unit} {name}" for unit, name in UNITS if count % unit == 0 and count)


def compare(
    cases: Sequence[Case], names: Sequence[str], size: int, rounds: int = ROUNDS, limits: Sequence[str] = ("C", "copy")
) -> tuple[list, list[str]]:
    """Rows of all cases over all libraries that are there, and what the others lack; the first name is ours."""
    groups, absent = worlds(names, size)
    return measured(cases, groups, absent, size, rounds, limits)


def measured(
    cases: Sequence[Case], groups: list[World], absent: list[str], size: int, rounds: int, limits: Sequence[str]
) -> tuple[list, list[str]]:
    """Rows of all cases over groups that are open and are closed at the end; adds to what is `absent`."""
    limit = None
    try:
        limit = Limit() if limits else None
    except (Failed, ImportError, OSError) as error:
        absent.append(str(error))
    try:
        rows = []
        for case in cases:
            bounds = {one: partial(bound, limit, one, ranks=size) for one in limits} if limit else {}
            rows.append(_row(case, groups, bounds, size, rounds, absent))
            print(".", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return rows, absent
    finally:
        for group in groups:
            group.close()
        if limit:
            limit.close()


def bound(limit: Limit, name: str, case: Case, *, ranks: int) -> list[float]:
    """The core from C, memory copied on all cores, or what a rank must send and receive in a wire of two ends."""
    if name == "C":
        return limit.measure(case, ranks)
    if not case.bytes:
        raise Refused(f"{name} has no {case.operation}")
    if name == "wire" and case.operation != "all_reduce":
        case = replace(case, bytes=case.bytes // 2)  # the other half stays where it is, or moves one way only
    return limit.measure(case, ranks, name)


def _row(case: Case, groups: list[World], bounds: dict, size: int, rounds: int, absent: list[str]) -> dict:
    subjects = {**{group.name: group.measure for group in groups}, **bounds}
    times: dict[str, list[float]] = {}
    orders: dict[str, Case] = {}
    for turn in range(rounds):
        for name, measure in list(subjects.items()):
            try:
                if not turn:
                    orders[name] = affordable(case, measure(replace(case, inner=1, samples=3)))
                times.setdefault(name, []).extend(measure(orders[name]))
            except Failed as error:
                del subjects[name]
                times.pop(name, None)
                if "has no" not in str(error):
                    absent.append(f"{label(vars(case))}: {error}")
                if not isinstance(error, Refused):
                    drop(groups, name)
    return {**vars(case), "ranks": size, "times": {name: spread(values) for name, values in times.items()}}


def drop(groups: list[World], name: str) -> None:
    """Take leave of a group that is of no more use."""
    for group in [group for group in groups if group.name == name]:
        groups.remove(group)
        group.close()


def affordable(case: Case, tried: list[float]) -> Case:
    """The case with fewer calls, if all of them would take too long."""
    share = MOST * 1e6 / (min(tried) * case.inner * case.samples)
    if share >= 1:
        return case
    inner = max(1, int(case.inner * share))
    samples = max(2, int(case.samples * share * case.inner / inner))
    return replace(case, inner=inner, samples=samples)


def table(rows: list[dict], names: Sequence[str], head: str = "", limit: str = "C") -> list[str]:
    """Markdown: medians with quartiles, the best peer over ours, ours over the limit."""
    ours, *peers = names
    lines = [
        f"| {head} | {ours} | {' | '.join(peers)} | best peer / ours | {limit} | ours / {limit} | copy |",
        "| --- " * (len(peers) + 6) + "|",
    ]
    for row in rows:
        times = row["times"]
        if ours not in times:
            lines.append(f"| {label(row)} | failed |" + " |" * (len(peers) + 4))
            continue
        mine = times[ours]["median"]
        others = [times[peer]["median"] for peer in peers if peer in times]
        cells = [label(row), *(cell(times.get(name)) for name in names)]
        cells.append(f"**{min(others) / mine:.1f}**" if others else "")
        cells += [cell(times.get(limit)), f"{mine / times[limit]['median']:.2f}" if limit in times else ""]
        cells.append(cell(times.get("copy")))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def label(row: dict) -> str:
    """The case in words."""
    what = [row["operation"], size_name(row["bytes"]) if row["bytes"] else ""]
    what += [row["dtype"]] if row["dtype"] != "float32" else []
    return " ".join(filter(None, [*what, "from comm.empty" if row["own"] else ""]))


def cell(times: dict | None) -> str:
    """Median and quartiles."""
    return f"{short(times['median'])} ({short(times['lower'])}–{short(times['upper'])})" if times else "–"


def short(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def notes(absent: list[str]) -> list[str]:
    """What was not measured, and why."""
    return ["", *(f"Not measured: {one.rstrip('.')}." for one in dict.fromkeys(absent))] if absent else []


def run(script: str, words: str | None, measure: Callable[[], tuple[list[dict], list[str]]]) -> None:
    """The main function of a benchmark: measure, record, print."""
    argparse.ArgumentParser(
        description=words, epilog=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    where = results.machine()
    rows, section = measure()
    print(results.record(Path(script).stem, rows, section, where, versions()))
