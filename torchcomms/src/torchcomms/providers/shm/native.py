"""The core in C, from wherever it is to be had: out of the wheel, out of the cache, or compiled now."""

from __future__ import annotations

import fcntl
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

from torchcomms.providers.shm import build

SWITCH = "TORCHCOMMS_SHM_NATIVE"
Blocks = Sequence[int] | None  # address and bytes for each rank, flat


class Group(Protocol):
    """The type `Comm` of core/module.c; statuses are numbers of call.py."""

    def all_reduce(self, address: int, count: int, code: int, /) -> int: ...
    def broadcast(self, address: int, count: int, dtype: int, root: int, /) -> int: ...
    def barrier(self) -> int: ...
    def begin(
        self,
        kind: int,
        dtype: int,
        reduction: int,
        root: int,
        factor: float,
        address: int,
        size: int,
        ins: Blocks,
        outs: Blocks,
        /,
    ) -> int: ...
    def step(self, park_ns: int, /) -> int: ...
    def calls(self) -> int: ...
    def late(self) -> list[int]: ...
    def odd(self) -> tuple[int, int]: ...
    def tell(self, story: bytes, /) -> None: ...
    def hear(self, rank: int, /) -> bytes: ...
    def heard(self, rank: int, /) -> bytes: ...
    def heap(self, rank: int, /) -> int: ...
    def pin(self) -> None: ...
    def unpin(self) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


class Core(Protocol):
    """The module of core/module.c."""

    Comm: Any  # Comm(descriptor, rank, size, (slot, chunk, small, piece, heap), spin_ns, park_ns) -> Group

    def count_up(self, address: int, /) -> None: ...
    def count_wait(self, address: int, seen: int, park_ns: int, /) -> int: ...
    def fold(
        self, dtype: int, reduction: int, factor: float, out: int, count: int, parts: tuple[int, ...], /
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Native:
    """The core, and where it came from; or None, and why there is none."""

    core: Core | None
    how: str


def wanted(choice: bool | None) -> bool | None:
    """What the option says, or else the environment: True insists, False forbids, None takes what there is."""
    if choice is None and os.environ.get(SWITCH, "") in ("0", "1"):
        return os.environ[SWITCH] == "1"
    return choice


@cache
def load() -> Native:
    """The core; compiled now if need be, once for all processes of this user."""
    try:
        shipped = importlib.import_module("torchcomms.providers.shm._core")
    except ImportError:
        return _from_cache()
    return Native(cast(Core, shipped), "as shipped in the wheel")


def expected() -> Native:
    """As `load`, but compiles nothing: where the core would come from, and None if from nowhere."""
    if importlib.util.find_spec("torchcomms.providers.shm._core") is not None or _cached().exists():
        return load()
    found = build.compiler()
    if found is None or build.headers() is None:
        return Native(None, f"no {'C compiler' if found is None else 'Python.h'}")
    return Native(cast(Core, ...), f"to be compiled by {found} at first use")


def folder() -> Path:
    """The cache of this user."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, "torchcomms")


def _cached() -> Path:
    return folder() / f"shm-{build.cache_key()}.so"


def _from_cache() -> Native:
    path = _cached()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = path.parent.stat()
    except OSError as error:
        return _compile_for_this_process(f"{error}")
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        return _compile_for_this_process(f"others may write to {path.parent}")
    if not path.exists():
        problem = _fill(path)
        if problem:
            return Native(None, problem)
    return _open(path, f"compiled for this machine: {path}")


def _fill(path: Path) -> str:
    """Compile to `path`, unless another process is at it: then wait for that. Why it failed, or ""."""
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return ""
        fresh = path.with_suffix(f".{os.getpid()}")
        try:
            problem = build.compile_core(fresh, portable=False)
            if not problem:
                fresh.rename(path)
        finally:
            fresh.unlink(missing_ok=True)
        return problem


def _compile_for_this_process(why: str) -> Native:
    with tempfile.TemporaryDirectory(prefix="torchcomms-") as private:
        path = Path(private, "_core.so")
        problem = build.compile_core(path, portable=False)
        if problem:
            return Native(None, problem)
        return _open(path, f"compiled for this process alone, since {why}")


def _open(path: Path, how: str) -> Native:
    loader = importlib.machinery.ExtensionFileLoader("torchcomms.providers.shm._core", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    try:
        module: ModuleType = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        return Native(None, f"{path} does not load: {error}")
    finally:
        sys.modules.pop(loader.name, None)
    return Native(cast(Core, module), how)
