"""How long after a rank is killed every survivor has its error: 4 ranks inside an all_reduce.

Ours name the dead rank. gloo has an error without a name, and only where the dead rank was a neighbour; the others wait
for their timeout, which this benchmark does not. An MPI ends the whole job. The limit is the time until a bare socket
to a process is closed after the same kill.
"""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import statistics
import time

from turns import notes, run, short
from world import Failed, World

TRIALS = {"shm": 40, "tcp": 40, "gloo": 6, "MPICH": 3, "Open MPI": 3}
RANKS = 4
BYTES = 4 << 20
VICTIM = 2
ENOUGH = 3.0  # seconds after which a survivor that says nothing counts as one that waits


def trial(name: str) -> dict[str, object]:
    """Milliseconds from the kill to the error, of the first and of the last survivor that has one."""
    world = World(name, RANKS).start()
    try:
        world.open()
        world.ask(do="loop", bytes=BYTES)
        time.sleep(random.uniform(0.0, 0.05))  # anywhere inside a collective
        killed = world.kill(VICTIM)
        said = [heard(world, rank, killed + ENOUGH) for rank in range(RANKS) if rank != VICTIM]
    finally:
        world.close()
    late = [(one["noticed"] - killed) * 1e3 for one in said if one]
    named = all(one and f"rank {VICTIM}" in one["error"] for one in said)
    return {
        "subject": name,
        "first": min(late, default=None),
        "last": max(late, default=None),
        "waiting": RANKS - 1 - len(late),
        "named": named,
        "limit": bare(),
    }


def heard(world: World, rank: int, until: float) -> dict | None:
    """What a survivor says, or when its process was ended, or nothing."""
    try:
        answer = world.hear_until(rank, until)
    except Failed:
        return {"noticed": time.monotonic(), "error": "its process was ended"}
    return answer


def bare() -> float:
    """Milliseconds from a kill to the end of the victim's connection, with nothing between."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        signal.pause()
    theirs.close()
    killed = time.monotonic()
    os.kill(child, signal.SIGKILL)
    select.select([ours], [], [], ENOUGH)
    late = (time.monotonic() - killed) * 1e3
    ours.close()
    os.waitpid(child, 0)
    return late


def summary(rows: list[dict]) -> list[str]:
    """One line for each library."""
    lines = ["| | first survivor | last survivor | worst | without an error after 3 s | names the dead | limit |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for name in TRIALS:
        mine = [row for row in rows if row["subject"] == name]
        if not mine:
            continue
        words = [name]
        for key in ("first", "last"):
            values = [row[key] for row in mine if row[key] is not None]
            words.append(short(statistics.median(values)) if values else "–")
        last = [row["last"] for row in mine if row["last"] is not None]
        waiting = sum(row["waiting"] for row in mine)
        words += [short(max(last)) if last else "–", f"{waiting} of {len(mine) * (RANKS - 1)}"]
        words += ["yes" if all(row["named"] for row in mine) else "no"]
        words.append(short(statistics.median(row["limit"] for row in mine)))
        lines.append(f"| {' | '.join(words)} |")
    return lines


def measure() -> tuple[list[dict], list[str]]:
    """Rows and section."""
    rows, absent = [], []
    for turn in range(max(TRIALS.values())):
        for name in [name for name, count in TRIALS.items() if turn < count]:
            try:
                rows.append(trial(name))
            except Failed as error:
                absent.append(str(error))
    counts = ", ".join(f"{sum(row['subject'] == name for row in rows)} for {name}" for name in TRIALS)
    return rows, [
        "## Noticing a death",
        f"Milliseconds from SIGKILL of one of {RANKS} ranks on two cores, inside an all_reduce of {BYTES >> 20} MiB,",
        f"to the error on the survivors, medians; kills: {counts}. With MPI it is the end of the whole job, with no",
        "error to catch. Limit is a bare socket.",
        "",
        *summary(rows),
        *notes(absent),
    ]


if __name__ == "__main__":
    run(__file__, __doc__, measure)
