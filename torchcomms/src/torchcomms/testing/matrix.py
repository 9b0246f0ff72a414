"""Checks of every operation on every claimed dtype: each reduction, sizes around the thresholds of algorithms.

Also worlds of one and of five ranks, and random programs of operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torchcomms.backend import Backend, ReduceOp
from torchcomms.testing.generate import for_programs
from torchcomms.testing.messages import claimed_dtypes
from torchcomms.testing.operations import OPERATIONS, REDUCING, Case, check_cases, perform
from torchcomms.testing.report import Check, expect
from torchcomms.testing.samples import all_dtypes, reductions
from torchcomms.testing.world import World, results

RANKS = 3
SHORT = (0, 1, 7, 1025)  # elements
THRESHOLDS = (32 << 10, 64 << 10)  # bytes where algorithms may change over
LONG = 300_007  # bytes, no multiple of anything
PROGRAMS = 25
SAME_LENGTH = frozenset({"broadcast", "all_reduce", "reduce", "scan"})


def counts(operation: str, dtype: str) -> list[int]:
    """Elements: few, and one of the sizes around a threshold or beyond, another one for each dtype."""
    sizes = [limit + step * all_dtypes()[dtype].itemsize for limit in THRESHOLDS for step in (-1, 0, 1)] + [LONG]
    chosen = sizes[(sorted(all_dtypes()).index(dtype) + sorted(OPERATIONS).index(operation)) % len(sizes)]
    # Where lengths differ by rank the longest is twice the count or more.
    halved = 1 if operation in SAME_LENGTH else 2
    return [*SHORT, chosen // all_dtypes()[dtype].itemsize // halved]


def reductions_of(operation: str, dtype: str) -> list[ReduceOp]:
    """The reductions that the operation has for the dtype; one that does not matter for operations that only move."""
    if operation not in REDUCING:
        return [ReduceOp.SUM]
    return [op for op in reductions(all_dtypes()[dtype]) if operation != "scan" or op != ReduceOp.AVG]


def cases_of(operation: str, dtype: str) -> list[Case]:
    """Every reduction at one size, and every size with one reduction."""
    ops = reductions_of(operation, dtype)
    sized = [Case(operation, count, dtype, ops[0], root=2) for count in counts(operation, dtype) if ops]
    return sized + [Case(operation, 33, dtype, op) for op in ops[1:]]


def every_dtype(operation: str, world: World[Backend]) -> dict[str, str]:
    """All cases of an operation; the reductions seen to work for each dtype, and whether the dtype moves at all."""
    claimed = results(world, claimed_dtypes)[0]
    cases = [case for dtype in claimed for case in cases_of(operation, dtype)]
    check_cases(world, cases)
    ops = {dtype: [op.kind for op in reductions_of(operation, dtype)] for dtype in claimed}
    return {dtype: " ".join(ops[dtype]) if operation in REDUCING else "moves" for dtype in claimed}


def other_sizes(world: World[Backend]) -> None:
    """Every operation in a world of one rank, or of a number that is no power of two."""
    roots = {0, world.size - 1}
    cases = [
        Case(operation, count, root=root) for operation in OPERATIONS for count in (0, 5, 30_001) for root in roots
    ]
    check_cases(world, cases)


def programs(world: World[Backend]) -> None:
    """Random sequences of operations, one after another; hypothesis finds and shrinks them where it is installed."""
    claimed = results(world, claimed_dtypes)[0]

    def holds(program: Sequence[Case]) -> None:
        for rank, wrongs in enumerate(results(world, partial(perform, program))):
            for case, wrong in zip(program, wrongs, strict=True):
                words = "; then ".join(map(str, program))
                expect(not wrong, f"{words}: {case}: on rank {rank} {wrong}")

    for_programs(holds, claimed, world.size, PROGRAMS)


def _check(operation: str) -> Check:
    clause = f"{operation} is right on every claimed dtype, for every reduction, at every size."
    return Check(f"matrix.{operation}", clause, partial(every_dtype, operation), RANKS)


def _sized(name: str, clause: str, size: int, function: Callable[[World[Backend]], None]) -> Check:
    return Check(f"matrix.{name}", clause, function, size)


CHECKS: Sequence[Check] = (
    *map(_check, OPERATIONS),
    _sized("alone", "Every operation is right for a rank alone.", 1, other_sizes),
    _sized("five", "Every operation is right for five ranks.", 5, other_sizes),
    _sized("programs", "Operations of any kind may follow each other.", RANKS, programs),
)
