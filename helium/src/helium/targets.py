"""Machines: the one that this process runs on, and those that code can be made for."""

from __future__ import annotations

import functools
import platform

import llvmlite.binding as llvm

from helium.contract import Target
from helium.emit.cpu.plan import Machine
from helium.errors import UnsupportedTarget

_FEATURES = frozenset({"avx2", "avx512", "avx512bf16", "vnni"})
_EXTRA = {"avx512bf16": "+avx512bf16", "vnni": "+avx512vnni"}
_ARCHES = {"aarch64": ("generic", "+neon", 16, 32), "riscv64": ("generic-rv64", "+m,+a,+f,+d,+c", 16, 16)}
KNOWN = ("x86_64-linux[+avx2][+avx512][+avx512bf16][+vnni]", "aarch64-linux", "riscv64-linux")
"""The targets of the native emitter."""


def host_target() -> str:
    """This machine in the shared grammar, such as "x86_64-linux+avx2"; with the features that decide code."""
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    has = llvm.get_host_cpu_features() if arch == "x86_64" else {}
    wanted = {
        "avx2": has.get("avx2") and has.get("fma"),
        "avx512": all(has.get(f"avx512{part}") for part in ("f", "bw", "dq", "vl", "cd")),
        "avx512bf16": has.get("avx512bf16"),
        "vnni": has.get("avx512vnni"),
    }
    return str(Target(arch, platform.system().lower(), tuple(sorted(name for name, there in wanted.items() if there))))


@functools.cache
def host_machine() -> Machine:
    """This CPU, with all that it can do."""
    target = Target.parse(host_target())
    features = llvm.get_host_cpu_features().flatten()
    wide = "avx512" in target.features
    if wide:
        features += ",-prefer-256-bit"
    vector_bytes = 64 if wide else 32 if "avx2" in target.features else 16
    registers = 32 if wide or target.arch == "aarch64" else 16
    return Machine(llvm.get_process_triple(), llvm.get_host_cpu_name(), features, vector_bytes, registers, True)


def machine(text: str) -> Machine:
    """The machine that a target names, at its least.

    Raises:
        UnsupportedTarget: The emitter makes no code for it.
    """
    try:
        target = Target.parse(text)
    except ValueError as error:
        raise UnsupportedTarget(text, KNOWN) from error
    if target.os != "linux" or not set(target.features) <= (_FEATURES if target.arch == "x86_64" else frozenset()):
        raise UnsupportedTarget(text, KNOWN)
    if target.arch == "x86_64":
        return _x86(target)
    if target.arch not in _ARCHES:
        raise UnsupportedTarget(text, KNOWN)
    cpu, features, vector_bytes, registers = _ARCHES[target.arch]
    return Machine(f"{target.arch}-unknown-linux-gnu", cpu, features, vector_bytes, registers, target.arch == "aarch64")


def _x86(target: Target) -> Machine:
    wide = bool({"avx512", "avx512bf16"} & set(target.features))
    cpu = "x86-64-v4" if wide else "x86-64-v3" if "avx2" in target.features else "x86-64-v2"
    extra = [_EXTRA[f] for f in target.features if f in _EXTRA] + (["-prefer-256-bit"] if wide else [])
    vector_bytes = 64 if wide else 32 if "avx2" in target.features else 16
    return Machine(
        "x86_64-unknown-linux-gnu", cpu, ",".join(extra), vector_bytes, 32 if wide else 16, vector_bytes > 16
    )
