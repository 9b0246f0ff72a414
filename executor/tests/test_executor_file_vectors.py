"""Test vectors: what is kept is read back, damage is refused, and a replay leaves the state as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from executor.errors import ManifestError, VerificationError
from executor.runtime import load
from executor.vectors import Case, Comparison, decode, encode, max_abs_diff, replay, require

pytestmark = pytest.mark.unit

Write = Callable[..., Path]
ONES = np.ones((2, 4), np.float32)

tensors = arrays.arrays(
    st.sampled_from(["float32", "int64", "bool", "uint16"]), arrays.array_shapes(min_dims=0, min_side=0)
)
cases = st.builds(
    Case,
    method=st.sampled_from(["forward", "decode"]),
    inputs=st.lists(tensors, max_size=2).map(tuple),
    outputs=st.lists(tensors, max_size=2).map(tuple),
    rtol=st.floats(0, 1),
    reset=st.booleans(),
)


@given(st.lists(cases, max_size=3))
def test_cases_are_read_back(kept: list[Case]) -> None:
    found = decode(memoryview(encode(kept)))
    assert [(c.method, c.rtol, c.atol, c.reset) for c in found] == [(c.method, c.rtol, c.atol, c.reset) for c in kept]
    for came, due in zip(found, kept, strict=True):
        for first, second in zip((*came.inputs, *came.outputs), (*due.inputs, *due.outputs), strict=True):
            assert first.dtype == second.dtype
            np.testing.assert_array_equal(first, second)


@given(st.data())
def test_damaged_vectors_are_refused_or_read(data: st.DataObject) -> None:
    whole = bytearray(encode([Case("forward", (ONES,), (ONES,))]))
    whole[data.draw(st.integers(0, 220))] ^= data.draw(st.integers(1, 255))
    damaged = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        found = decode(memoryview(damaged))
    except ManifestError:
        return
    assert all(isinstance(case, Case) for case in found)


def test_a_replay_compares_and_leaves_the_state(write_program: Write) -> None:
    runtime = load(write_program())
    runtime(ONES)
    found = replay(runtime, [Case("forward", (ONES,), (ONES * 7,)), Case("forward", (ONES,), (ONES * 9,), reset=False)])
    assert found == [Comparison("forward", "y", 0.0, True), Comparison("forward", "y", 1.0, False)]
    assert runtime.state.snapshot()["count"] == [6]
    require(found[:1])
    with pytest.raises(VerificationError, match=r"forward\.y by 1"):
        require(found)


def test_another_shape_is_infinitely_far_and_another_method_an_error(write_program: Write) -> None:
    runtime = load(write_program())
    (found,) = replay(runtime, [Case("forward", (ONES,), (ONES[:1],))])
    assert (found.max_abs_diff, found.within) == (float("inf"), False)
    with pytest.raises(ManifestError, match=r"test vectors for 'decode'; the program has \['forward'\]"):
        replay(runtime, [Case("decode", (), ())])


def test_equal_infinities_and_nans_are_at_no_distance() -> None:
    same = np.array([np.inf, -np.inf, np.nan, 1.0])
    assert max_abs_diff(same, same.copy()) == 0
    assert max_abs_diff(np.array([True, False]), np.array([True, True])) == 1
    assert max_abs_diff(np.zeros(0), np.zeros(0)) == 0
    assert np.isnan(max_abs_diff(np.array([np.nan]), np.array([0.0])))
