"""Collectives over loopback: the tcp backend beside gloo, which is what torch has for CPUs of several hosts."""

from __future__ import annotations

from turns import Case, compare, notes, run, table

NAMES = ("tcp", "gloo")
RANKS = 2
KIB, MIB = 1 << 10, 1 << 20
CASES = (
    Case("all_reduce", 8, inner=5, samples=10),
    Case("all_reduce", 4 * KIB, inner=5, samples=10),
    Case("all_reduce", 256 * KIB, inner=1, samples=10),
    Case("all_reduce", 4 * MIB, inner=1, samples=6),
    Case("all_reduce", 64 * MIB, inner=1, samples=2),
    *(Case(name, 4 * MIB, inner=1, samples=6) for name in ("broadcast", "all_gather", "reduce_scatter", "all_to_all")),
    Case("barrier", 0, inner=5, samples=10),
)


def measure() -> tuple[list[dict], list[str]]:
    """Rows and section."""
    rows, absent = compare(CASES, NAMES, RANKS, limits=("wire", "copy"))
    return rows, [
        "## Over loopback",
        "Microseconds of a call on the slower rank, median and quartiles; TCP between two processes of one machine.",
        "Wire is the bytes that a rank must send and receive, both at once, driven from C in two pinned processes that",
        "do nothing else; copy is memcpy on both cores.",
        "",
        *table(rows, NAMES, "2 ranks", "wire"),
        *notes(absent),
    ]


if __name__ == "__main__":
    run(__file__, __doc__, measure)
