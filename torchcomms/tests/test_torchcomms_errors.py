"""The error tree: as drawn, picklable, and each leaf also a builtin."""

import inspect
import pickle

import pytest

from torchcomms import errors

LEAVES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
FACTS = {
    "PeerFailed": {"ranks": frozenset({1, 2})},
    "CacheRefused": {"path": "somewhere"},
    "CommsTimeout": {"missing": frozenset({3})},
    "CollectiveMismatch": {"calls": {0: "a", 1: "b"}},
    "MessageMismatch": {"peer": 1, "tag": 2, "expected": 8, "actual": 12},
    "BackendConflict": {"name": "x", "distributions": ("a", "b")},
}


@pytest.mark.unit
def test_the_tree_in_the_docstring_is_the_tree():
    drawn = {line.split()[1]: line.split("(")[1].split(")")[0] for line in errors.__doc__.splitlines() if "── " in line}
    real = {kind.__name__: kind.__bases__[1].__name__ for kind in LEAVES if kind is not errors.CommsError}
    assert drawn == real
    assert all(issubclass(kind, errors.CommsError) for kind in LEAVES)


@pytest.mark.unit
@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_errors_pickle_with_their_facts(kind):
    facts = FACTS.get(kind.__name__, {})
    copy = pickle.loads(pickle.dumps(kind("what happened", **facts)))
    assert type(copy) is kind
    assert str(copy) == "what happened"
    assert {name: getattr(copy, name) for name in facts} == facts


@pytest.mark.unit
def test_ranks_are_named_in_words():
    assert errors.name_ranks({2}) == "rank 2"
    assert errors.name_ranks({3, 1}) == "ranks 1, 3"
