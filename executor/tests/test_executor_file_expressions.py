"""Expressions over symbols: the grammar's values are Python's, and nothing outside it is taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.errors import ManifestError
from executor.expressions import evaluate, symbols_of

pytestmark = pytest.mark.unit

expressions = st.recursive(
    st.sampled_from(["n", "m"]) | st.integers(0, 99).map(str),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner)
        | st.builds("({} {} {})".format, inner, st.sampled_from(["//", "%"]), st.integers(1, 9))
        | st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), inner, inner)
        | st.builds("-{}".format, inner)
    ),
    max_leaves=10,
)


@given(expressions, st.integers(0, 1000), st.integers(0, 1000))
def test_values_are_those_of_python(text: str, n: int, m: int) -> None:
    assert evaluate(text, {"n": n, "m": m}) == eval(text, {}, {"n": n, "m": m})


def test_a_whole_number_is_its_own_value() -> None:
    assert evaluate(7, {}) == 7
    assert symbols_of(7) == frozenset()


def test_symbols_are_the_names_but_not_the_functions() -> None:
    assert symbols_of("max(n, 4*m) + n") == {"n", "m"}


@pytest.mark.parametrize(
    "text",
    ["", "n**9", "n/2", "1.5", "True", "'a'", "n.x", "f(n)", "max(n)", "max(n, key=m)", "max", "n if m else 1", "[n]",
     "__import__('os')", "n; m", "lambda: n", "(" * 5000, "n+" * 1500 + "n", "n:=1", "\0"],
)  # fmt: skip
def test_what_is_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        evaluate(text, {"n": 1, "m": 1})


def test_a_missing_symbol_and_a_division_by_zero_are_named() -> None:
    with pytest.raises(ManifestError, match="uses symbol 'k'"):
        evaluate("k + 1", {"n": 1})
    with pytest.raises(ManifestError, match="divides by zero"):
        evaluate("4 // n", {"n": 0})
