"""Starting the ranks of a plan and showing what they find: a table on a terminal, or JSON."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import asdict

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import torchcomms
from torchcomms.bench.plan import Plan, Row
from torchcomms.launcher import Job, launch

MARKER = "torchcomms-bench "
MODULE = "torchcomms.bench.rank"


def main(plan: Plan, as_json: bool, *, nodes: int = 1, node: int = 0, rendezvous: str = "") -> int:
    """Measure and print, on node 0; the exit code, 1 if a result of the backend was wrong.

    With several machines each runs this; see `Job` for the last three arguments.
    """
    job = Job(
        (sys.executable, "-u", "-m", MODULE, plan.dump()), plan.ranks, nodes=nodes, node=node, rendezvous=rendezvous
    )
    console, rows = Console(), list[Row]()
    progress = Progress(TextColumn(plan.operation), BarColumn(), MofNCompleteColumn(), transient=True)
    task = progress.add_task("", total=plan.rows())

    def show(rank: int, is_error: bool, line: str, end: str) -> None:
        if line.startswith(MARKER):
            rows.append(Row.load(line.removeprefix(MARKER)))
            progress.advance(task)
        else:
            print(f"[{rank}] {line}", end=end, file=sys.stderr, flush=True)

    with progress if console.is_terminal and not as_json else nullcontext():
        code = launch(job, show)
    if node:
        return code
    if as_json:
        print(json.dumps({**facts(plan), "rows": [asdict(row) for row in rows]}))
    elif rows:
        console.print(table(plan, rows))
    return code or int(any(next(iter(row.times)) in row.wrong for row in rows))


def facts(plan: Plan) -> dict[str, object]:
    """What was measured, with what."""
    versions = {"torch": torch.__version__, "torchcomms": torchcomms.__version__}
    return {"plan": asdict(plan), "versions": versions}


def table(plan: Plan, rows: list[Row]) -> Table:
    """One line for each size; with a peer also its time, and how many times ours that is."""
    mine, *others = rows[0].times
    title = f"{plan.operation}, {plan.dtype}, {rows[0].ranks} ranks on {plan.device}, {mine}"
    grid = Table(title=title, caption=f"µs of the slowest rank, GB/s{_wrong(rows)}")
    for head in ("size", "median", "p10", "p90", "algbw", "busbw", "right"):
        grid.add_column(head, justify="right", no_wrap=True)
    for other in others:
        grid.add_column(other, justify="right", no_wrap=True)
        grid.add_column("ratio", justify="right")
    for row in rows:
        grid.add_row(*_cells(plan, row, mine, others))
    return grid


def _cells(plan: Plan, row: Row, mine: str, others: list[str]) -> list[str]:
    ours, speed = row.times[mine], row.bandwidth(mine)
    moved = [_gigabytes(speed), _gigabytes(speed * plan.bus_factor(row.ranks))] if row.bytes else ["", ""]
    right = "no" if mine in row.wrong else "yes"
    cells = [size_name(row.bytes), *(_short(ours[key]) for key in ("median", "p10", "p90")), *moved, right]
    for other in others:
        theirs = row.times[other]["median"]
        cells += [_short(theirs), f"{theirs / ours['median']:.2f}"]
    return cells


def _wrong(rows: list[Row]) -> str:
    """Who gave wrong results, the peer too."""
    names = sorted({name for row in rows for name in row.wrong})
    return f"; wrong results or inputs overwritten: {', '.join(names)}" if names else ""


def size_name(count: int) -> str:
    """Bytes in words."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B"


def _gigabytes(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 else "<0.01"


def _short(microseconds: float) -> str:
    return f"{microseconds:.2f}" if microseconds < 100 else f"{microseconds:.0f}"
