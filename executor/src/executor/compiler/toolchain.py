"""The C compiler of this machine: gcc or cc, else the one in the package ziglang."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from executor.errors import ToolchainError
from executor.targets import Target

# Value-preserving all: no error flag of the mathematics is ever read, and signed sums wrap as torch's do. Products and
# sums may become one fused operation; nothing is reassociated but the reductions marked as such.
_FLAGS = (
    "-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno",
    "-fno-trapping-math", "-fwrapv", "-fopenmp-simd", "-fno-semantic-interposition", "-w",
)  # fmt: skip
_SECONDS = 300
ZIG = [sys.executable, "-m", "ziglang", "cc"]


def compiler() -> list[str]:
    """The command of the C compiler; ToolchainError if there is none."""
    for name in ("gcc", "cc"):
        if found := shutil.which(name):
            return [found]
    if importlib.util.find_spec("ziglang"):
        return ZIG
    raise ToolchainError("no C compiler: install gcc, or the package ziglang (pip install 'pentad-executor[compile]')")


def shared_object(sources: Mapping[str, str], target: Target, objects: Mapping[str, bytes]) -> bytes:
    """C `sources` (name: text) as a shared object for `target`, linked with relocatable `objects` (name: contents)."""
    command = compiler()
    with tempfile.TemporaryDirectory(prefix="edge-") as folder:
        files = {f"{name}.c": text.encode() for name, text in sources.items()}
        files.update({f"{name}.o": contents for name, contents in objects.items()})
        for name, contents in files.items():
            Path(folder, name).write_bytes(contents)
        _run([*command, *_FLAGS, *_machine(command, target), *files, "-o", "program.so", "-lm", "-Wl,-s"], folder)
        return Path(folder, "program.so").read_bytes()


def _machine(command: Sequence[str], target: Target) -> tuple[str, ...]:
    """The target's flags as this compiler spells them."""
    if command != ZIG:
        return target.flags
    return tuple(
        flag.replace("-march=", "-mcpu=").replace("x86-64", "x86_64").replace("_64-v", "_64_v") for flag in target.flags
    )


def _run(command: Sequence[str], folder: str) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, env=os.environ)
    except subprocess.TimeoutExpired as error:
        raise ToolchainError(f"{command[0]} took longer than {_SECONDS} s") from error
    if done.returncode:
        raise ToolchainError(f"{' '.join(command[:2])} failed:\n{done.stderr[-2000:]}")
