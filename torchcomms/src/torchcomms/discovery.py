"""Finding backends by name among the installed distributions, through entry points."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from torchcomms.backend import Backend
from torchcomms.errors import BackendConflict, BackendInvalid, BackendNotFound

GROUP = "torchcomms.backends.v1"
INTERFACE = (1, 0)


def backends() -> list[str]:
    """The names of the installed backends, sorted; reads metadata and imports none of them."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


@cache
def find(name: str) -> type[Backend]:
    """The backend class of that name, imported and checked once.

    Raises `BackendNotFound`, `BackendConflict` when two distributions provide it, and `BackendInvalid` when it does not
    import or does not meet the contract.
    """
    backend: type[Backend] = _load(_single(name, list(entry_points(group=GROUP, name=name))))
    return backend


def provider(entry: EntryPoint) -> str:
    """The distribution that an entry point comes from, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown distribution"


def _single(name: str, entries: Sequence[EntryPoint]) -> EntryPoint:
    if not entries:
        known = tuple(backends())
        raise BackendNotFound(
            f"no backend {name!r} is installed; there are {', '.join(known) or 'none'}. "
            f"Install a distribution with an entry point {name!r} in the group {GROUP}.",
            name=name,
            known=known,
        )
    # One editable install can be listed twice under the same distribution and value; that is no conflict.
    if len({(provider(entry), entry.value) for entry in entries}) > 1:
        owners = tuple(sorted({provider(entry) for entry in entries}))
        raise BackendConflict(
            f"backend {name!r} is provided by {' and by '.join(owners)}; uninstall one of them",
            name=name,
            distributions=owners,
        )
    return entries[0]


def _load(entry: EntryPoint) -> type[Backend]:
    try:
        candidate = entry.load()
    except Exception as error:
        raise BackendInvalid(
            f"backend {entry.name!r} of {provider(entry)} does not import: {error}", backend=entry.name
        ) from error
    problems = check_class(candidate)
    if problems:
        raise BackendInvalid(
            f"backend {entry.name!r} of {provider(entry)} does not meet the contract: {'; '.join(problems)}",
            backend=entry.name,
        )
    loaded: type[Backend] = candidate
    return loaded


def check_class(candidate: object) -> list[str]:
    """What is wrong with a backend class by its outside: kind, interface, names, signatures."""
    if not (isinstance(candidate, type) and issubclass(candidate, Backend)):
        return [f"{candidate!r} is no subclass of torchcomms.Backend"]
    major, minor = candidate.interface
    problems = []
    if major != INTERFACE[0] or minor < INTERFACE[1]:
        problems.append(f"its interface is {major}.{minor}, needed is {INTERFACE[0]}.{INTERFACE[1]} or a later minor")
    if not isinstance(getattr(candidate, "name", None), str):
        problems.append("it has no name")
    if inspect.isabstract(candidate):
        problems.append(f"it lacks {', '.join(sorted(candidate.__abstractmethods__))}")
    return problems + [
        f"{name} does not take what the contract passes" for name in _OPERATIONS if _differs(candidate, name)
    ]


_OPERATIONS = tuple(name for name, member in vars(Backend).items() if not name.startswith("_") and callable(member))


def _differs(candidate: type[Backend], name: str) -> bool:
    """Whether calls that fit the contract's signature would not fit the candidate's."""
    wanted = inspect.signature(getattr(Backend, name))
    kinds = inspect.Parameter
    positional = [1 for one in wanted.parameters.values() if one.kind is kinds.POSITIONAL_OR_KEYWORD]
    keywords = {one.name: 1 for one in wanted.parameters.values() if one.kind is kinds.KEYWORD_ONLY}
    try:
        inspect.signature(getattr(candidate, name)).bind(*positional, **keywords)
    except TypeError:
        return True
    return False
