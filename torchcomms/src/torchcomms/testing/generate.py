"""Random programs of operations: drawn and shrunk by hypothesis where it is installed, else a fixed sample."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torchcomms.backend import ReduceOp
from torchcomms.errors import CommsError
from torchcomms.testing.operations import OPERATIONS, REDUCING, Case
from torchcomms.testing.samples import all_dtypes, reductions

T = TypeVar("T")
Choose = Callable[[Sequence[Any]], Any]
LONGEST = 5  # operations of a program
COUNTS = (0, 1, 2, 3, 5, 64, 1000, 1001, 4097, 16_385, 20_000)  # elements; simple ones first, for shrinking


def program(choose: Choose, dtypes: Sequence[str], size: int) -> list[Case]:
    """Draw a program for a world of `size` ranks."""
    return [_case(choose, dtypes, size) for _ in range(choose(range(1, LONGEST + 1)))]


def _case(choose: Choose, dtypes: Sequence[str], size: int) -> Case:
    operation = choose(sorted(OPERATIONS))
    reducing = operation in REDUCING
    able = [name for name in dtypes if not reducing or reductions(all_dtypes()[name])]
    dtype = choose(able)
    ops = reductions(all_dtypes()[dtype]) if reducing else [ReduceOp.SUM]
    op = choose([one for one in ops if operation != "scan" or one.kind != "avg"])
    return Case(operation, choose(COUNTS), dtype, op, choose(range(size)))


def for_programs(holds: Callable[[Sequence[Case]], None], dtypes: Sequence[str], size: int, count: int) -> None:
    """Call `holds` with `count` programs; raises its `AssertionError` for the simplest program found to fail.

    Another error leaves the world of no use for more programs: it is raised as it is, and nothing is shrunk.
    """
    broken: list[CommsError] = []

    def attempt(drawn: Sequence[Case]) -> None:
        try:
            if not broken:
                holds(drawn)
        except CommsError as error:
            broken.append(error)

    if importlib.util.find_spec("hypothesis") is None:
        _sample(attempt, dtypes, size, count)
    else:
        _search(attempt, dtypes, size, count)
    if broken:
        raise broken[0]


def _sample(attempt: Callable[[Sequence[Case]], None], dtypes: Sequence[str], size: int, count: int) -> None:
    for seed in range(count):
        attempt(program(random.Random(seed).choice, dtypes, size))


def _search(attempt: Callable[[Sequence[Case]], None], dtypes: Sequence[str], size: int, count: int) -> None:
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def search(data: st.DataObject) -> None:
        attempt(program(lambda options: data.draw(st.sampled_from(options)), dtypes, size))

    search()
