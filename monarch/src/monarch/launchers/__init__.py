"""Finds launchers by their entry points (group `monarch.launchers.v1`) and checks one when it is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from monarch.errors import LauncherBroken, LauncherConflict, UnknownLauncher
from monarch.spec import Launcher

GROUP = "monarch.launchers.v1"


def launchers() -> tuple[str, ...]:
    """Names of the installed launchers, from metadata alone: nothing is imported."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def find_launcher(name: str) -> Callable[..., Launcher]:
    """The `make(**options)` of the launcher called `name`; UnknownLauncher, LauncherConflict or LauncherBroken."""
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        raise UnknownLauncher(name, launchers())
    if len({entry.dist.name if entry.dist else "" for entry in found}) > 1:
        raise LauncherConflict(name, [_distribution(entry) for entry in found])
    return _load(found[0])


def _load(entry: EntryPoint) -> Callable[..., Launcher]:
    try:
        make: Any = entry.load()
    except Exception as error:
        raise LauncherBroken(f"launcher {entry.name!r} of {_distribution(entry)} cannot be imported") from error
    if not callable(make):
        raise LauncherBroken(
            f"launcher {entry.name!r} of {_distribution(entry)} is {make!r}; it must be make(**options)"
        )
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise LauncherBroken(
            f"launcher {entry.name!r} of {_distribution(entry)}: make() must need no option"
        ) from error
    return make  # type: ignore[no-any-return]


def _distribution(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
