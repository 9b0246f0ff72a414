"""Targets: the names of machines that code is compiled for, `<arch>-<os>[+<feature>…]`, and which one this is."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from executor.errors import UnsupportedTargetError

# A feature, and the processor flags of Linux that make it up.
_FEATURES = {
    "avx2": {"avx2", "fma", "bmi2"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma", "bmi2"},
    "avx512bf16": {"avx512_bf16"},
    "vnni": {"avx512_vnni"},
}
_ARCHES = {"x86_64": "x86_64", "AMD64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Target:
    """A machine; `vector` is how many bytes its registers hold, `flags` what the C compiler is told."""

    name: str
    vector: int
    flags: tuple[str, ...]


@lru_cache(maxsize=1)
def host() -> str:
    """The name of this machine with every feature that it has: "x86_64-linux+avx2"."""
    machine = platform.machine()
    system = {"linux": "linux", "darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
    base = f"{_ARCHES.get(machine, machine.lower())}-{system}"
    if not base.startswith("x86_64-linux"):
        return base
    flags = _flags()
    return "+".join([base, *sorted(name for name, needed in _FEATURES.items() if needed <= flags)])


def resolve(name: str) -> Target:
    """What code for the target `name` may use; "host" is this machine.

    UnsupportedTargetError if this version cannot compile for it: only for the machine that it runs on, or one like it
    with fewer features.
    """
    name = host() if name == "host" else name
    base, *features = name.split("+")
    host_base, *host_features = host().split("+")
    unknown = sorted(set(features) - set(_FEATURES))
    if base != host_base or unknown or not set(features) <= set(host_features):
        raise UnsupportedTargetError(name, host())
    return Target("+".join([base, *sorted(features)]), *_machine(base, frozenset(features)))


def _machine(base: str, features: frozenset[str]) -> tuple[int, tuple[str, ...]]:
    if not base.startswith("x86_64"):
        return 16, ()
    if "avx512" in features:
        extra = [
            f"-m{flag}" for flag, name in (("avx512bf16", "avx512bf16"), ("avx512vnni", "vnni")) if name in features
        ]
        return 64, ("-march=x86-64-v4", *extra)
    return (32, ("-march=x86-64-v3",)) if "avx2" in features else (16, ("-march=x86-64",))


def _flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    lines = [line for line in text.splitlines() if line.startswith("flags")]
    return frozenset(lines[0].split(":", 1)[1].split()) if lines else frozenset()
