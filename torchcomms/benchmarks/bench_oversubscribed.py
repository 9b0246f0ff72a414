"""Four ranks on two cores: shm beside gloo, MPICH and Open MPI, where whoever spins keeps the others from working."""

from __future__ import annotations

from turns import Case, compare, notes, run, table

NAMES = ("shm", "gloo", "MPICH", "Open MPI")
RANKS = 4
ROUNDS = 5
KIB, MIB = 1 << 10, 1 << 20
CASES = (
    Case("all_reduce", 8, inner=10, samples=10),
    Case("all_reduce", 4 * KIB, inner=10, samples=10),
    Case("all_reduce", 256 * KIB, inner=1, samples=10),
    Case("all_reduce", 4 * MIB, inner=1, samples=6),
    Case("all_reduce", 4 * MIB, "bfloat16", inner=1, samples=6),
    Case("all_reduce", 64 * MIB, inner=1, samples=2),
    *(Case(name, 4 * MIB, inner=1, samples=5) for name in ("broadcast", "all_gather", "reduce_scatter", "all_to_all")),
    Case("barrier", 0, inner=10, samples=10),
)


def measure() -> tuple[list[dict], list[str]]:
    """Rows and section."""
    rows, absent = compare(CASES, NAMES, RANKS, ROUNDS)
    return rows, [
        "## Four ranks on two cores",
        "Microseconds of a call on the slowest rank, median and quartiles; as above, but nobody is pinned, and there",
        "are more ranks than cores. Open MPI runs with --oversubscribe, which makes its waits yield.",
        "",
        *table(rows, NAMES, "4 ranks"),
        *notes(absent),
    ]


if __name__ == "__main__":
    run(__file__, __doc__, measure)
