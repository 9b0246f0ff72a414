"""The table of choices measured on this machine: cached, read by rank 0, and the same on every rank of a group.

`torchcomms tune` writes it. A cache that is damaged, or of another machine, is refused with a warning and the built-in
table is used.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from torchcomms.algorithms.choice import DEFAULT, Rule, Table
from torchcomms.backend import Backend, Store
from torchcomms.errors import CacheRefused, CommsTimeout, InvalidCall

__all__ = ["Tuned", "agree", "cached", "machine", "path", "save"]

VERSION = 1
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a cache holds: the rules for groups of up to some numbers of ranks, and what was measured for them.

    `worlds` maps a number of ranks to its measurements, rows of (operation, bytes, algorithm, seconds).
    """

    backend: str
    worlds: dict[int, list[tuple[str, int, str, float]]]

    def table(self) -> Table:
        """The rules of the measured groups, smallest first; larger groups go by the built-in rules."""
        rules: dict[str, list[Rule]] = {}
        for ranks in sorted(self.worlds):
            for operation, listed in _winners(ranks, self.worlds[ranks]).items():
                known = rules.setdefault(operation, [])
                if not known and ranks > 2:
                    # Two ranks are a case of their own: what holds for more of them says nothing.
                    known += [rule for rule in DEFAULT.rules[operation] if rule.ranks is not None and rule.ranks <= 2]
                known += listed
        return Table({operation: (*listed, *DEFAULT.rules[operation]) for operation, listed in rules.items()})


def _winners(ranks: int, rows: list[tuple[str, int, str, float]]) -> dict[str, list[Rule]]:
    """The fastest algorithm of each size; between two sizes the limit is their geometric mean."""
    best: dict[str, dict[int, tuple[float, str]]] = {}
    for operation, nbytes, algorithm, seconds in rows:
        sizes = best.setdefault(operation, {})
        sizes[nbytes] = min(sizes.get(nbytes, (seconds, algorithm)), (seconds, algorithm))
    found: dict[str, list[Rule]] = {}
    for operation, sizes in best.items():
        listed = found.setdefault(operation, [])
        ordered = sorted(sizes)
        for nbytes, larger in zip(ordered, [*ordered[1:], None], strict=True):
            limit = None if larger is None else int((nbytes * larger) ** 0.5)
            algorithm = sizes[nbytes][1]
            if listed and listed[-1].algorithm == algorithm:
                listed.pop()
            listed.append(Rule(algorithm, ranks, limit))
    return found


def machine() -> dict[str, str]:
    """What a table depends on, besides the backend: another machine has other crossovers."""
    return {
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "torchcomms": metadata.version("pentad-torchcomms"),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def path(backend: str) -> Path:
    """Where the table of a backend is cached: under XDG_CACHE_HOME, or .cache in the home directory."""
    root = os.environ.get("XDG_CACHE_HOME")
    folder = Path(root) if root and Path(root).is_absolute() else Path.home() / ".cache"
    return folder / "torchcomms" / f"tuning-{backend}.json"


def cached(backend: str) -> Tuned | None:
    """What is cached for a backend, or None. Raises `CacheRefused` for what is damaged or another machine's."""
    file = path(backend)
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CacheRefused(f"{file} cannot be read: {error}", path=str(file)) from error
    try:
        return _read(backend, json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CacheRefused(
            f"{file} is not used: {error}; run `torchcomms tune` again, or delete it", path=str(file)
        ) from error


def _read(backend: str, written: Any) -> Tuned:
    if not isinstance(written, dict) or written.get("version") != VERSION:
        raise ValueError(f"it is not a tuning cache of version {VERSION}")
    here, there = machine(), written["machine"]
    other = [f"{fact} {there.get(fact)!r}, here {here[fact]!r}" for fact in here if there.get(fact) != here[fact]]
    if other:
        raise ValueError(f"it was measured elsewhere ({'; '.join(other)})")
    if written["backend"] != backend:
        raise ValueError(f"it is of the backend {written['backend']!r}")
    worlds = {
        int(ranks): [(str(a), int(b), str(c), float(d)) for a, b, c, d in rows]
        for ranks, rows in written["worlds"].items()
    }
    tuned = Tuned(backend, worlds)
    tuned.table()
    return tuned


def save(tuned: Tuned) -> Path:
    """Write the cache, whole or not at all; where it is."""
    file = path(tuned.backend)
    worlds = {str(ranks): rows for ranks, rows in tuned.worlds.items()}
    written = {"version": VERSION, "machine": machine(), "backend": tuned.backend, "worlds": worlds}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as new:
            new.write(json.dumps(written, indent=1) + "\n")
        os.replace(new.name, file)
    except OSError as error:
        raise InvalidCall(f"{file} cannot be written: {error}; set XDG_CACHE_HOME to a folder of yours") from error
    return file


def agree(backend: Backend, store: Store, *, epoch: int = 0) -> Table | None:
    """Give every rank of an opened backend rank 0's table. Collective, through the store; one round trip.

    Sets `backend.choices` to the cached table of rank 0's machine, or to None (the built-in table) if it has none; a
    cache that is refused is a warning in the log. Closes the backend and raises `CommsTimeout` if rank 0 does not come.
    """
    if backend.size == 1:
        backend.choices = _own(backend.name)
        return backend.choices
    generation = store.add(f"torchcomms/tuning/{epoch}/{backend.rank}", 1)
    key = f"torchcomms/tuning/{epoch}.{generation}"
    if backend.rank == 0:
        backend.choices = _own(backend.name)
        store.set(key, json.dumps(backend.choices and backend.choices.to_json()))
        return backend.choices
    try:
        store.wait([key], timedelta(seconds=backend.timeout))
    except Exception as error:
        backend.close()
        raise CommsTimeout(f"rank 0 did not say which algorithms run when: {error}", missing={0}) from error
    told = json.loads(store.get(key))
    backend.choices = None if told is None else Table.from_json(told)
    return backend.choices


def _own(backend: str) -> Table | None:
    try:
        tuned = cached(backend)
    except CacheRefused as refused:
        log.warning("%s", refused)
        return None
    return tuned.table() if tuned else None
