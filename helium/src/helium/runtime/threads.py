"""The OpenMP pool that torch has loaded, so that a kernel runs on torch's own threads and not beside them."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from helium.emit.cpu.plan import Pool

_MAPS = Path("/proc/self/maps")


@functools.cache
def pool() -> Pool | None:
    """torch's pool; None where torch was built with another one, and kernels run on the calling thread."""
    path = _library()
    if path is None:
        return None
    library = ctypes.CDLL(path)
    try:
        return Pool(*(_address(library, name) for name in ("GOMP_parallel", "omp_get_thread_num")))
    except AttributeError:
        return None


def _library() -> str | None:
    """The path of the loaded libgomp; torch's own if there are several."""
    if not _MAPS.exists():
        return None
    lines = _MAPS.read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "libgomp" in line and len(line.split(maxsplit=5)) == 6}
    home = str(Path(torch.__file__).parent)
    return min(paths, key=lambda path: (not path.startswith(home), path), default=None)


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
