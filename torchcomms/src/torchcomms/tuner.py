"""`torchcomms tune`: time the algorithms of operations over sizes on ranks of this machine; cache the winners."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Grid

from torchcomms import tuning
from torchcomms.algorithms.choice import ALGORITHMS, always
from torchcomms.backend import Backend, ReduceOp
from torchcomms.discovery import find
from torchcomms.errors import CacheRefused, InvalidCall
from torchcomms.measuring import on_ranks, run_rank, timed
from torchcomms.tuning import Tuned

SIZES = (8, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 4 << 20)
MOST = 1 << 30  # bytes of the longest tensor that is measured


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured; sizes are bytes of a rank's tensor, or of a block for all_gather and reduce_scatter."""

    backend: str
    ranks: int
    operations: tuple[str, ...]
    sizes: tuple[int, ...] = SIZES
    repeats: int = 10

    def __post_init__(self) -> None:
        unknown = [one for one in self.operations if one not in ALGORITHMS]
        if unknown or not self.operations:
            raise InvalidCall(
                f"no choice of algorithms for {unknown or 'nothing'}; choose among {', '.join(ALGORITHMS)}"
            )
        if not self.sizes or min(self.sizes) < 1 or max(self.sizes) > MOST:
            raise InvalidCall(f"sizes {list(self.sizes)}: pass some from 1 to {MOST} bytes")
        if self.ranks < 2:
            raise InvalidCall(f"{self.ranks} ranks have nothing to choose; pass 2 or more")

    def cases(self) -> Iterator[tuple[str, int, str]]:
        """(operation, bytes, algorithm), algorithms of one size beside each other."""
        for operation in self.operations:
            for nbytes in self.sizes:
                for algorithm in ALGORITHMS[operation]:
                    # On one host there is one level.
                    if algorithm != "hierarchical":
                        yield operation, nbytes, algorithm


def plan_of(backend: str, ranks: int, operations: tuple[str, ...], sizes: tuple[int, ...], repeats: int) -> Plan:
    """A plan without the operations that the backend has of its own, among which it lets nobody choose."""
    native = find(backend).capabilities().native
    chosen = tuple(one for one in operations or tuple(ALGORITHMS) if one not in native)
    if not chosen:
        raise InvalidCall(f"the backend {backend} has its own {', '.join(sorted(native))}: there is nothing to choose")
    return Plan(backend, ranks, chosen, sizes or SIZES, repeats)


def actions(backend: Backend, nbytes: int) -> Mapping[str, Callable[[], object]]:
    """Each operation on tensors of so many bytes."""
    one = torch.zeros(-(-nbytes // 4))
    many = [torch.zeros_like(one) for _ in range(backend.size)]
    return {
        "all_reduce": lambda: backend.all_reduce(one, ReduceOp.SUM).wait(),
        "reduce": lambda: backend.reduce(one, 0, ReduceOp.SUM).wait(),
        "reduce_scatter": lambda: backend.reduce_scatter(one, many, ReduceOp.SUM).wait(),
        "all_gather": lambda: backend.all_gather(many, one).wait(),
        "broadcast": lambda: backend.broadcast(one, 0).wait(),
    }


def measure(backend: Backend, plan: Plan, report: Callable[[Any], None]) -> list[tuple[str, int, str, float]]:
    """Time every case, on all ranks; the rows are the same on each. Leaves the backend's choices as they were."""
    rows, before = [], backend.choices
    for operation, nbytes, algorithm in plan.cases():
        backend.choices = always(operation, algorithm)
        seconds = timed(backend, actions(backend, nbytes)[operation], plan.repeats)
        rows.append((operation, nbytes, algorithm, seconds))
        report([operation, nbytes, algorithm])
    backend.choices = before
    return rows


def tune(plan: Plan, *, dry_run: bool, console: Console) -> None:
    """Measure, print and cache, beside what other numbers of ranks gave. A dry run says what would be."""
    cases = list(plan.cases())
    file = tuning.path(plan.backend)
    console.print(f"{len(cases)} cases of {', '.join(plan.operations)} on {plan.ranks} ranks over {plan.backend}")
    if dry_run:
        console.print(f"dry run: nothing is measured, and {file} stays as it is", soft_wrap=True)
        return
    with Progress(console=console) as progress:
        task = progress.add_task("measuring", total=len(cases))

        def advance(case: Any) -> None:
            progress.update(task, advance=1, description=f"{case[0]} {case[1]} B {case[2]}")

        rows = on_ranks("torchcomms.tuner", plan.ranks, asdict(plan), advance)
    tuned = Tuned(plan.backend, {**_known(plan.backend, console), plan.ranks: [tuple(row) for row in rows]})
    show(tuned, console)
    console.print(f"written to {tuning.save(tuned)}", soft_wrap=True)


def _known(backend: str, console: Console) -> dict[int, list[tuple[str, int, str, float]]]:
    try:
        before = tuning.cached(backend)
    except CacheRefused as refused:
        console.print(f"replaced: {refused}", soft_wrap=True, markup=False)
        return {}
    return before.worlds if before else {}


def show(tuned: Tuned, console: Console) -> None:
    """Print the measurements, the fastest first, and the rules that follow."""
    for ranks, rows in sorted(tuned.worlds.items()):
        grid = Grid("operation", "bytes", "algorithms, fastest first (µs)", title=f"{tuned.backend}, {ranks} ranks")
        for operation, nbytes in dict.fromkeys((row[0], row[1]) for row in rows):
            times = sorted((row[3], row[2]) for row in rows if row[:2] == (operation, nbytes))
            grid.add_row(operation, str(nbytes), ", ".join(f"{name} {seconds * 1e6:.0f}" for seconds, name in times))
        console.print(grid)


def show_cached(backend: str, console: Console) -> int:
    """Print what is cached; 1 if it is refused."""
    try:
        tuned = tuning.cached(backend)
    except CacheRefused as refused:
        console.print(str(refused), soft_wrap=True, markup=False)
        return 1
    if tuned is None:
        console.print(f"nothing is cached for {backend} at {tuning.path(backend)}", soft_wrap=True)
        return 0
    show(tuned, console)
    console.print(f"from {tuning.path(backend)}", soft_wrap=True)
    return 0


def _plan(written: dict[str, Any]) -> Plan:
    return Plan(**{**written, "operations": tuple(written["operations"]), "sizes": tuple(written["sizes"])})


if __name__ == "__main__":
    run_rank(lambda backend, plan, report: measure(backend, _plan(plan), report), json.loads(sys.argv[1])["backend"])
