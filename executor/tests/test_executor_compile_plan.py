"""The memory plan: its verifier accepts what the planner makes and refuses what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor import ir
from executor.compiler.plan import check, planned
from executor.report import lower_bound

pytestmark = pytest.mark.unit


@st.composite
def blocks(draw: st.DrawFn) -> ir.Block:
    """Temporaries of random sizes that live between random steps."""
    steps = draw(st.integers(1, 12))
    buffers, uses = [], [[] for _ in range(steps)]  # type: ignore[var-annotated]
    for number in range(draw(st.integers(1, 14))):
        first = draw(st.integers(0, steps - 1))
        last = draw(st.integers(first, steps - 1))
        buffers.append(ir.Buffer(f"t{number}", "temp", "float32", (draw(st.integers(1, 300)),)))
        for step in {first, last}:
            uses[step].append(number)
    return ir.Block(tuple(buffers), tuple(ir.Step(0, tuple(numbers)) for numbers in uses))


@given(blocks())
def test_plans_are_sound_and_not_below_the_bound(block: ir.Block) -> None:
    made, arena = planned(block)
    check(made, arena)
    assert arena >= lower_bound(block)


def _two(first: int | None, second: int | None) -> ir.Block:
    buffers = (
        ir.Buffer("a", "temp", "float32", (16,), offset=first),
        ir.Buffer("b", "temp", "float32", (16,), offset=second),
    )
    return ir.Block(buffers, (ir.Step(0, (0, 1)),))


@pytest.mark.parametrize(
    ("first", "second", "arena", "problem"),
    [(0, 0, 64, "b on a"), (0, 64, 100, "of 100"), (0, 32, 128, "b at"), (0, None, 128, "b has no place")],
)
def test_wrong_plans_are_refused(first: int, second: int | None, arena: int, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check(_two(first, second), arena)


def test_buffers_that_never_meet_share_their_place() -> None:
    block = replace(_two(None, None), steps=(ir.Step(0, (0,)), ir.Step(0, (1,))))
    assert planned(block)[1] == 64
