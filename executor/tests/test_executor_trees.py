"""Trees: flatten, match and unflatten are inverse, and JSON carries them whole."""

from __future__ import annotations

import json
import math
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor import trees
from executor.errors import ManifestError, TreeError

pytestmark = pytest.mark.unit

Pair = namedtuple("Pair", ["first", "second"])

arrays = st.integers(0, 99).map(np.array)
constants = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=4)
values = st.recursive(
    arrays | constants,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


def same(first: Any, second: Any) -> bool:
    """Equal in structure and values; namedtuples by their fields, because the file makes its own class."""
    if isinstance(first, np.ndarray):
        return first is second
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return (
            isinstance(first, list) == isinstance(second, list)
            and getattr(first, "_fields", ()) == getattr(second, "_fields", ())
            and len(first) == len(second)
            and all(map(same, first, second))
        )
    return type(first) is type(second) and first == second


@given(values)
def test_unflatten_undoes_flatten(value: Any) -> None:
    leaves, tree = trees.flatten(value)
    assert same(value, trees.unflatten(tree, leaves))


@given(values)
def test_match_finds_the_leaves_that_flatten_found(value: Any) -> None:
    leaves, tree = trees.flatten(value)
    matched = dict(trees.match(tree, value, "value"))
    assert [matched[index] for index in range(len(leaves))] == leaves


@given(values)
def test_json_carries_a_tree_whole(value: Any) -> None:
    _, tree = trees.flatten(value)
    trees.check_tree(tree)
    assert trees.from_json(json.loads(json.dumps(trees.to_json(tree), allow_nan=False))) == tree


def test_nan_travels_and_matches() -> None:
    tree = trees.from_json(trees.to_json(trees.const(math.nan)))
    assert list(trees.match(tree, math.nan, "x")) == []


def test_a_namedtuple_comes_back_with_its_name_and_fields() -> None:
    leaves, tree = trees.flatten(Pair(np.array(1), None))
    made = trees.unflatten(trees.from_json(trees.to_json(tree)), leaves)
    assert type(made).__name__ == "Pair"
    assert (made.first, made.second) == (leaves[0], None)


@pytest.mark.parametrize(
    ("value", "given_value", "place", "came"),
    [
        ({"a": [np.array(0)]}, {"a": np.array(0)}, r"x\['a'\]", "ndarray"),
        ({"a": [np.array(0)]}, {"a": []}, r"x\['a'\]", "list of 0"),
        ({"a": np.array(0)}, {"b": np.array(0)}, "x", r"\['b'\]"),
        ((np.array(0), True), (np.array(0), 1), r"x\[1\]", "came 1"),
        ((np.array(0), None), (np.array(0), np.array([1, 2])), r"x\[1\]", "constant None"),
        ([np.array(0)], (np.array(0),), "x", "tuple"),
    ],
)
def test_a_mismatch_names_the_place_and_what_came(value: Any, given_value: Any, place: str, came: str) -> None:
    _, tree = trees.flatten(value)
    with pytest.raises(TreeError, match=f"^{place}: .*{came}"):
        list(trees.match(tree, given_value, "x"))


def test_a_value_that_is_no_tree_is_refused() -> None:
    with pytest.raises(TreeError, match="set in a tree"):
        trees.flatten([{1, 2}])


@pytest.mark.parametrize(
    "form",
    [
        {},
        [],
        7,
        {"leaf": "0"},
        {"leaf": True},
        {"leaf": -1},
        {"leaf": 1},
        {"leaf": 0, "const": 1},
        {"const": [1]},
        {"const": {"float": "1"}},
        {"dict": {"a": {"leaf": 0}}},
        {"dict": [["a", {"leaf": 0}], ["a", {"leaf": 1}]]},
        {"dict": [[1.5, {"leaf": 0}]]},
        {"dict": [["a"]]},
        {"tuple": {"leaf": 0}},
        {"namedtuple": ["class", ["a"], [{"leaf": 0}]]},
        {"namedtuple": ["P", ["a b"], [{"leaf": 0}]]},
        {"namedtuple": ["P", ["a"], []]},
        {"set": []},
    ],
)
def test_malformed_json_describes_no_tree(form: object) -> None:
    with pytest.raises(ManifestError):
        trees.check_tree(trees.from_json(form))


def test_a_bottomless_tree_is_refused() -> None:
    form: dict[str, Any] = {"leaf": 0}
    for _ in range(100):
        form = {"list": [form]}
    with pytest.raises(ManifestError, match="deeper than 64"):
        trees.from_json(form)
