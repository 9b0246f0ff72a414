"""What it costs that every collective finds out whether the ranks agree on it: 8 bytes between two ranks."""

from __future__ import annotations

from limits import Limit
from turns import Case, cell, drop, notes, run
from world import Failed, spread, worlds

ROUNDS = 15
RANKS = 2
EIGHT = Case("all_reduce", 8, inner=200, samples=5)
OVER_TCP = (Case("all_reduce", 8, inner=10, samples=5), Case("unchecked", 8, inner=10, samples=5))


def core(absent: list[str]) -> dict[str, list[float]]:
    """The core's all_reduce, and an exchange and sum of a slot with nothing around it."""
    times: dict[str, list[float]] = {"core, checked": [], "core, bare exchange": []}
    try:
        limit = Limit()
        for _ in range(ROUNDS):
            times["core, checked"] += limit.measure(EIGHT, RANKS)
            times["core, bare exchange"] += limit.measure(EIGHT, RANKS, "bare")
        limit.close()
    except Failed as error:
        absent.append(str(error))
        return {}
    return times


def tcp(absent: list[str]) -> dict[str, list[float]]:
    """The communicator over tcp, and its backend alone."""
    groups, missing = worlds(["tcp"], RANKS)
    absent += missing
    times: dict[str, list[float]] = {"tcp, checked": [], "tcp, backend alone": []}
    try:
        for _ in range(ROUNDS if groups else 0):
            for name, case in zip(times, OVER_TCP, strict=True):
                times[name] += groups[0].measure(case)
    except Failed as error:
        absent.append(str(error))
        return {}
    finally:
        drop(groups, "tcp")
    return times if groups or not missing else {}


def measure() -> tuple[list[dict], list[str]]:
    """Rows and section."""
    absent: list[str] = []
    times = {**core(absent), **tcp(absent)}
    rows = [{"subject": name, "times": spread(values)} for name, values in times.items() if values]
    return rows, [
        "## What checking costs",
        f"Microseconds of an all_reduce of 8 B between {RANKS} ranks, median and quartiles. In the core the",
        "fingerprint of the call rides with the flag; the bare exchange is a flag, the bytes beside it and a sum in C,",
        "with no operation around them.",
        "The tcp backend's communicator sends fingerprints along with the data.",
        "",
        "| | µs |",
        "| --- | --- |",
        *(f"| {row['subject']} | {cell(row['times'])} |" for row in rows),
        *notes(absent),
    ]


if __name__ == "__main__":
    run(__file__, __doc__, measure)
