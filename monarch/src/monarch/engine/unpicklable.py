"""Finds the part of a value that cannot be pickled, and the path to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

DEPTH = 32


def explain(value: Any, path: str, fails: Callable[[Any], bool], error: Exception) -> tuple[str, Any, str]:
    """Path, object and reason of the innermost part for which `fails` holds."""
    culprit = value
    for _ in range(DEPTH):
        inner = next(((at, part) for at, part in _parts(culprit) if fails(part)), None)
        if inner is None:
            break
        path, culprit = path + inner[0], inner[1]
    return path, culprit, f"{type(error).__name__}: {error}"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"[{key!r}]", part
            yield f".keys()[{key!r}]", key
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif isinstance(value, (set, frozenset)):
        for part in value:
            yield "{…}", part
    elif not isinstance(value, type):
        for name, part in getattr(value, "__dict__", {}).items():
            yield f".{name}", part
