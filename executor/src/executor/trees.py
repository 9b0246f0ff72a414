"""Trees: the structure of arguments and results, with numbered leaves, and its JSON form.

JSON: `{"dict": [[key, tree], …]} | {"tuple": [tree, …]} | {"list": [tree, …]} |
{"namedtuple": [name, [field, …], [tree, …]]} | {"leaf": i} | {"const": v}`. A dict is a list of pairs because its
order counts and its keys may be whole numbers. Constants are null, booleans, numbers and strings; a number that JSON
lacks is `{"float": "inf" | "-inf" | "nan"}`.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from executor.errors import ManifestError, TreeError

Kind = Literal["const", "dict", "leaf", "list", "namedtuple", "tuple"]
Constant = bool | int | float | str | None

_DEEPEST = 64


@dataclass(frozen=True, slots=True)
class Tree:
    """One node. `keys` are a dict's keys or a namedtuple's fields; `value` is a leaf's number or a constant."""

    kind: Kind
    children: tuple[Tree, ...] = ()
    keys: tuple[str | int, ...] = ()
    value: Constant = None
    name: str = ""


def leaf(index: int) -> Tree:
    """The place of leaf number `index`."""
    return Tree("leaf", value=index)


def const(value: Constant) -> Tree:
    """A value that is the same at every call."""
    return Tree("const", value=value)


def is_array(value: object) -> bool:
    """Whether `value` is a tensor of any library: it can be handed over by DLPack or as an array."""
    return hasattr(value, "__dlpack__") or hasattr(value, "__array__")


def flatten(value: object, is_leaf: Callable[[object], bool] = is_array) -> tuple[list[Any], Tree]:
    """The leaves of `value` in order, and its tree; TreeError for what is neither container, constant nor leaf."""
    leaves: list[Any] = []
    return leaves, _flatten(value, is_leaf, leaves)


def unflatten(tree: Tree, leaves: Sequence[object]) -> Any:
    """The value of which `tree` is the structure and `leaves` are the leaves."""
    if tree.kind == "leaf":
        return leaves[_index(tree)]
    if tree.kind == "const":
        return tree.value
    children = [unflatten(child, leaves) for child in tree.children]
    match tree.kind:
        case "dict":
            return dict(zip(tree.keys, children, strict=True))
        case "namedtuple":
            return _namedtuple(tree.name, tree.keys)(*children)
        case "list":
            return children
    return tuple(children)


def match(tree: Tree, value: object, where: str) -> Iterator[tuple[int, object]]:
    """(number, leaf) for each leaf of `value`; TreeError naming the place where it is not of `tree`'s structure."""
    if tree.kind == "leaf":
        yield _index(tree), value
    elif tree.kind == "const":
        _match_constant(tree.value, value, where)
    else:
        for child, (key, part) in zip(tree.children, _parts(tree, value, where), strict=True):
            yield from match(child, part, f"{where}{key}")


def leaf_count(tree: Tree) -> int:
    """How many leaves there are: one more than the largest number."""
    return max((_index(node) for node in _walk(tree) if node.kind == "leaf"), default=-1) + 1


def check_tree(tree: Tree) -> None:
    """ManifestError unless the tree is well formed and its leaves are numbered without gaps."""
    _check_node(tree, 0)
    numbers = sorted({_index(node) for node in _walk(tree) if node.kind == "leaf"})
    if numbers and (numbers[0], numbers[-1]) != (0, len(numbers) - 1):
        raise ManifestError(f"a tree's leaves are numbered {numbers[:8]}…: they count from 0 without gaps")


def to_json(tree: Tree) -> dict[str, Any]:
    """The JSON form of `tree`."""
    children = [to_json(child) for child in tree.children]
    match tree.kind:
        case "leaf":
            return {"leaf": tree.value}
        case "const":
            odd = isinstance(tree.value, float) and not math.isfinite(tree.value)
            return {"const": {"float": str(tree.value)} if odd else tree.value}
        case "dict":
            return {"dict": [[key, child] for key, child in zip(tree.keys, children, strict=True)]}
        case "namedtuple":
            return {"namedtuple": [tree.name, list(tree.keys), children]}
    return {tree.kind: children}


def from_json(form: object, depth: int = 0) -> Tree:
    """The tree that `form` describes; ManifestError if it describes none."""
    if depth > _DEEPEST:
        raise ManifestError(f"a tree deeper than {_DEEPEST} levels")

    def below(forms: object) -> tuple[Tree, ...]:
        return tuple(from_json(child, depth + 1) for child in _list(forms))

    match form:
        case {"leaf": int() as index, **rest} if not rest:
            return leaf(index)
        case {"const": value, **rest} if not rest:
            return const(_constant(value))
        case {"dict": list() as pairs, **rest} if not rest and all(isinstance(p, list) and len(p) == 2 for p in pairs):
            return Tree("dict", below([child for _, child in pairs]), tuple(key for key, _ in pairs))
        case {"namedtuple": [str() as name, list() as fields, children], **rest} if not rest:
            return Tree("namedtuple", below(children), tuple(fields), name=name)
        case {"list": children, **rest} if not rest:
            return Tree("list", below(children))
        case {"tuple": children, **rest} if not rest:
            return Tree("tuple", below(children))
    raise ManifestError(f"{str(form)[:80]!r} describes no tree")


def _flatten(value: object, is_leaf: Callable[[object], bool], leaves: list[Any]) -> Tree:
    if is_leaf(value):
        leaves.append(value)
        return leaf(len(leaves) - 1)
    if value is None or isinstance(value, bool | int | float | str):
        return const(value)
    if isinstance(value, dict):
        return Tree("dict", tuple(_flatten(part, is_leaf, leaves) for part in value.values()), tuple(value))
    if isinstance(value, tuple | list):
        children = tuple(_flatten(part, is_leaf, leaves) for part in value)
        if fields := getattr(value, "_fields", None):
            return Tree("namedtuple", children, tuple(fields), name=type(value).__name__)
        return Tree("list" if isinstance(value, list) else "tuple", children)
    raise TreeError(f"a {type(value).__name__} in a tree: only dicts, lists, tuples, constants and tensors may be")


def _parts(tree: Tree, value: object, where: str) -> list[tuple[str, object]]:
    """(subscript, part) of a container, in the order of the tree's children."""
    if tree.kind == "dict":
        if not isinstance(value, dict) or value.keys() != set(tree.keys):
            came = f"a dict of {list(value)}" if isinstance(value, dict) else f"a {type(value).__name__}"
            raise TreeError(f"{where}: came {came}; due a dict of {list(tree.keys)}")
        return [(f"[{key!r}]", value[key]) for key in tree.keys]
    # A tuple serves for a namedtuple and the other way round: the caller need not own the class.
    fits = isinstance(value, list if tree.kind == "list" else tuple)
    if not isinstance(value, list | tuple) or not fits or len(value) != len(tree.children):
        came = f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, list | tuple) else "")
        raise TreeError(f"{where}: came {came}; due a {tree.kind} of {len(tree.children)}")
    return [(f"[{index}]", part) for index, part in enumerate(value)]


def _match_constant(due: Constant, came: object, where: str) -> None:
    both_nan = isinstance(due, float) and isinstance(came, float) and math.isnan(due) and math.isnan(came)
    # Compared as types first: comparing an array with a constant gives an array.
    if not both_nan and (type(came) is not type(due) or came != due):
        raise TreeError(f"{where}: came {str(came)[:80]}; the program was compiled for the constant {due!r} here")


def _walk(tree: Tree) -> Iterator[Tree]:
    yield tree
    for child in tree.children:
        yield from _walk(child)


def _index(tree: Tree) -> int:
    assert isinstance(tree.value, int)
    return tree.value


def _check_node(tree: Tree, depth: int) -> None:
    if depth > _DEEPEST:
        raise ManifestError(f"a tree deeper than {_DEEPEST} levels")
    if tree.kind == "leaf" and (type(tree.value) is not int or tree.value < 0):
        raise ManifestError(f"a leaf numbered {tree.value!r}")
    if tree.kind in ("dict", "namedtuple"):
        _check_keys(tree)
    for child in tree.children:
        _check_node(child, depth + 1)


def _check_keys(tree: Tree) -> None:
    good = all(type(key) in (str, int) for key in tree.keys) and len(set(tree.keys)) == len(tree.keys)
    if not good or len(tree.keys) != len(tree.children):
        raise ManifestError(f"a {tree.kind} of {len(tree.children)} parts with the keys {str(tree.keys)[:80]}")
    if tree.kind == "namedtuple":
        _namedtuple(tree.name, tree.keys)


@lru_cache(maxsize=256)
def _namedtuple(name: str, fields: tuple[str | int, ...]) -> Callable[..., Any]:
    try:
        return namedtuple(name, [str(field) for field in fields])
    except ValueError as error:
        raise ManifestError(f"no namedtuple {name!r} of {fields}: {error}") from None


def _list(forms: object) -> list[Any]:
    if not isinstance(forms, list):
        raise ManifestError(f"{str(forms)[:80]!r} where a list of trees is due")
    return forms


def _constant(value: object) -> Constant:
    if isinstance(value, dict) and value.keys() == {"float"} and value["float"] in ("inf", "-inf", "nan"):
        return float(value["float"])
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ManifestError(f"{str(value)[:80]!r} is no constant")
