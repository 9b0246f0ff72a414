"""How long four ranks take to form a group, once everything is imported."""

from __future__ import annotations

from turns import cell, notes, run
from world import Failed, World, spread

NAMES = ("shm", "tcp", "gloo", "MPICH", "Open MPI")
RANKS = 4
TIMES = 10
MPI_TIMES = 3  # an MPI can be initialized once in a process


def repeated(name: str) -> list[float]:
    """Milliseconds until the last rank has a group: made and closed again in the same processes."""
    world = World(name, RANKS).start()
    try:
        times = [world.open() * 1e3]
        for _ in range(TIMES - 1):
            world.ask(do="close")
            times.append(world.open() * 1e3)
        return times
    finally:
        world.close()


def fresh(name: str) -> list[float]:
    """The same for a library that needs new processes each time."""
    times = []
    for _ in range(MPI_TIMES):
        world = World(name, RANKS).start()
        try:
            times.append(world.open() * 1e3)
        finally:
            world.close()
    return times


def measure() -> tuple[list[dict], list[str]]:
    """Rows and section."""
    rows, absent = [], []
    for name in NAMES:
        try:
            times = fresh(name) if "MPI" in name else repeated(name)
            rows.append({"subject": name, "ms": spread(times)})
        except Failed as error:
            absent.append(str(error))
    return rows, [
        "## Forming a group",
        f"Milliseconds from a common start until the last of {RANKS} ranks on two cores has its group; imports are",
        "done and the store is connected, as a launcher leaves it. Median and quartiles.",
        "",
        "| | ms |",
        "| --- | --- |",
        *(f"| {row['subject']} | {cell(row['ms'])} |" for row in rows),
        *notes(absent),
    ]


if __name__ == "__main__":
    run(__file__, __doc__, measure)
