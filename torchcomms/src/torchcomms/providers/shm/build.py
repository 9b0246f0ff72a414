"""Compiling the core: which files, with which flags. Standard library only: the wheel's build hook runs it too."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path

CORE = Path(__file__).with_name("core")
SOURCES = ("fold.c", "meeting.c", "operations.c", "module.c")
HEADERS = ("fold.h", "group.h", "halves.h")
# No contraction: a fused multiply-add rounds once where torch rounds twice.
FLAGS = (
    *("-std=c11", "-O2", "-ftree-vectorize", "-fPIC", "-shared", "-fvisibility=hidden"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-DPy_LIMITED_API=0x030B0000"),
)
COMPILERS = ("cc", "gcc", "clang")


def compiler() -> str | None:
    """The C compiler: $CC, or the first of the usual names that there is."""
    named = os.environ.get("CC", "").split()
    return next(filter(None, map(shutil.which, [*named[:1], *COMPILERS])), None)


def headers() -> str | None:
    """Where Python.h is, if it is there."""
    folder = sysconfig.get_path("include")
    return folder if Path(folder, "Python.h").exists() else None


def command(compiler: str, output: Path, *, portable: bool) -> list[str]:
    """The command that compiles the core to `output`, for this processor or for every one of its kind."""
    target = "-DTORCHCOMMS_PORTABLE" if portable else "-march=native"
    # gcc's own judgement at -O2 leaves most loops alone; clang has no such judgement and no such flag.
    judgement = [] if "clang" in compiler else ["-fvect-cost-model=dynamic"]
    sources = [str(CORE / name) for name in SOURCES]
    return [compiler, *FLAGS, *judgement, target, f"-I{sysconfig.get_path('include')}", *sources, "-o", str(output)]


def compile_core(output: Path, *, portable: bool) -> str:
    """Compile the core to `output`; why that failed, or "" if it is there."""
    found = compiler()
    if found is None:
        return f"no C compiler: none of {', '.join(COMPILERS)} is there"
    if headers() is None:
        return f"no Python.h in {sysconfig.get_path('include')}: install the headers of this Python"
    done = subprocess.run(command(found, output, portable=portable), capture_output=True, text=True)
    return done.stderr.strip()[-500:] or f"{found} failed with {done.returncode}" if done.returncode else ""


def digest() -> str:
    """A name for the core as its sources are: equal ones understand each other's memory."""
    text = hashlib.sha256()
    for name in (*SOURCES, *HEADERS):
        text.update((CORE / name).read_bytes())
    return text.hexdigest()[:32]


def cache_key() -> str:
    """A name for what compiling here would give: sources, flags, compiler, interpreter and processor."""
    facts = (digest(), *FLAGS, compiler(), sysconfig.get_config_var("SOABI"), platform.machine(), _processor())
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _processor() -> str:
    # A cache on a shared home folder is seen by machines of several kinds, and -march=native fits one.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
