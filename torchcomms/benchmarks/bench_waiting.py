"""How much CPU a rank burns while another is two seconds late."""

from __future__ import annotations

import time

from turns import notes, run, short
from world import Failed, World

NAMES = ("shm", "tcp", "gloo", "MPICH", "Open MPI")
RANKS = 2
LATE = 2.0  # seconds
TIMES = 3


def burnt(name: str) -> list[float]:
    """Milliseconds of CPU of the rank that waits."""
    world = World(name, RANKS).start()
    try:
        world.open()
        times = []
        for _ in range(TIMES):
            answers = world.ask(do="late", seconds=LATE, at=time.monotonic() + 0.3)
            times.append(answers[1]["cpu"] * 1e3)
        return times
    finally:
        world.close()


def measure() -> tuple[list[dict], list[str]]:
    """Rows and section."""
    rows, absent = [], []
    for name in NAMES:
        try:
            times = burnt(name)
            rows.append({"subject": name, "ms": times, "median": sorted(times)[len(times) // 2]})
        except Failed as error:
            absent.append(str(error))
    return rows, [
        "## Waiting",
        "Milliseconds of CPU, in all its threads, that a rank spends in an all_reduce for which the other is",
        f"{LATE:g} s late; each of {TIMES} times.",
        "",
        "| | ms of CPU | each |",
        "| --- | --- | --- |",
        *(f"| {row['subject']} | {short(row['median'])} | {', '.join(map(short, row['ms']))} |" for row in rows),
        *notes(absent),
    ]


if __name__ == "__main__":
    run(__file__, __doc__, measure)
