"""Compiled code out of a program file: choose it for this machine, load it from memory, find its functions."""

from __future__ import annotations

import _ctypes
import ctypes
import itertools
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from executor import targets
from executor.errors import DamagedFileError, TargetMismatchError
from executor.file import ProgramFile

# The C signature of a method (executor.manifest): six addresses and the pool.
_ARGUMENTS = [ctypes.c_void_p] * 7
_loads = itertools.count(1)


def runs_on(target: str, host: str) -> bool:
    """Whether code for `target` runs on `host`: the same machine, and no feature that it lacks."""
    base, *features = target.split("+")
    host_base, *host_features = host.split("+")
    return base == host_base and set(features) <= set(host_features)


def choose(file: ProgramFile) -> memoryview:
    """The code in `file` that uses the most of this machine; TargetMismatchError if none runs here."""
    host = targets.host()
    held = list(file.find("code"))
    usable = [(segment.target.count("+"), code) for segment, code in held if runs_on(segment.target, host)]
    if not usable:
        names = [segment.target for segment, _ in held]
        cure = f"compile it with target={host!r}, or load it with allow_code=False to interpret it"
        raise TargetMismatchError(file.path, f"code for {names}, none of which runs on {host!r}", cure)
    return max(usable, key=lambda pair: pair[0])[1]


class Library:
    """A shared object loaded from memory, unloaded by `close` or with the object."""

    def __init__(self, path: str, code: memoryview) -> None:
        self._path = path
        try:
            self._library = _open(code)
        except OSError as error:
            raise DamagedFileError(path, f"its code cannot be loaded ({error})", "compile it again") from error
        self._unload = weakref.finalize(self, _ctypes.dlclose, self._library._handle)
        # At exit other threads may still run in it, and the process takes it along anyway.
        self._unload.atexit = False

    def function(self, method: str) -> ctypes._NamedFuncPointer:
        """The C function of `method`, which must not be called after `close`."""
        try:
            function = self._library[f"edge_{method}"]
        except AttributeError:
            raise DamagedFileError(self._path, f"its code lacks edge_{method}", "compile it again") from None
        function.argtypes, function.restype = _ARGUMENTS, ctypes.c_int
        return function

    def close(self) -> None:
        """Unload the code. Idempotent."""
        self._unload()


def _open(code: memoryview) -> ctypes.CDLL:
    """Load `code` from memory, or from a private file where memory cannot be executed."""
    try:
        with _in_memory(code) as name:
            return ctypes.CDLL(name)
    except (AttributeError, OSError):
        with _in_file(code) as name:
            return ctypes.CDLL(name)


@contextmanager
def _in_memory(code: memoryview) -> Iterator[str]:
    descriptor = os.memfd_create("edge", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as stream:
        stream.write(code)
        stream.flush()
        yield _unique(f"/proc/self/fd/{descriptor}")


@contextmanager
def _in_file(code: memoryview) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="edge-") as folder:
        name = os.path.join(folder, f"code-{next(_loads)}.so")
        with open(name, "wb") as stream:
            stream.write(code)
        yield name


def _unique(name: str) -> str:
    """Another spelling of `name` for each load.

    glibc takes a name that it has loaded before for the same library, and descriptor numbers come back: without this
    a second program could silently run the first one's code.
    """
    folder, file = name.rsplit("/", 1)
    spelling = "".join("/." if bit == "1" else "/" for bit in f"{next(_loads):b}")
    return f"{folder}{spelling}/{file}"
