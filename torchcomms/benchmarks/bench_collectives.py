"""Collectives of two ranks of one machine: shm beside gloo, MPICH, Open MPI, the core driven from C, and memcpy."""

from __future__ import annotations

from turns import ROUNDS, Case, compare, notes, run, table

NAMES = ("shm", "gloo", "MPICH", "Open MPI")
RANKS = 2
KIB, MIB = 1 << 10, 1 << 20
CALLS = {8: (100, 10), 4 * KIB: (100, 10), 256 * KIB: (4, 10), 4 * MIB: (1, 8), 64 * MIB: (1, 3)}
EXCHANGES = ("broadcast", "all_gather", "reduce_scatter", "all_to_all")


def case(operation: str, size: int, dtype: str = "float32", own: bool = False) -> Case:
    """A case with as many calls as its size allows."""
    inner, samples = CALLS[size]
    return Case(operation, size, dtype, own, inner, samples)


def cases() -> list[Case]:
    """Every row."""
    return [
        *(case("all_reduce", size, dtype) for dtype in ("float32", "bfloat16") for size in CALLS),
        *(case("all_reduce", size, own=True) for size in CALLS if size >= 256 * KIB),
        *(case(operation, 4 * MIB) for operation in EXCHANGES),
        Case("barrier", 0, inner=100, samples=10),
    ]


def section(rows: list[dict], absent: list[str]) -> list[str]:
    return [
        "## Two ranks of one machine",
        "Microseconds of a call on the slower rank, median and quartiles; blocking calls back to back, one core for",
        f"each rank (gloo is faster so, though it has threads), {ROUNDS} rounds in which the libraries take",
        "turns. C is the same core driven from C in two pinned processes, copy is memcpy of the bytes on both cores at",
        "once, both measured between the others' turns. MPI works on arrays of numpy and has no bfloat16.",
        "",
        *table(rows, NAMES, "2 ranks"),
        *notes(absent),
    ]


def measure() -> tuple[list[dict], list[str]]:
    """Rows and section."""
    rows, absent = compare(cases(), NAMES, RANKS)
    return rows, section(rows, absent)


if __name__ == "__main__":
    run(__file__, __doc__, measure)
