"""What there is on this machine, which backends work on it, and what to do about those that do not."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import sys
from dataclasses import dataclass

import torch

import torchcomms
from torchcomms.backend import Capabilities
from torchcomms.discovery import backends, find
from torchcomms.errors import CommsError
from torchcomms.launcher import Job, launch
from torchcomms.selftest import MARKER, MODULE


@dataclass(frozen=True, slots=True)
class Finding:
    """One backend: usable or not, and a line that says what it does, or why not and the cure."""

    name: str
    usable: bool
    words: str


def main(test: bool = False) -> int:
    """Print the findings, and with `test` run what is usable; the exit code."""
    for line in machine():
        print(line)
    print()
    findings = [examine(name) for name in backends()]
    for finding in findings:
        print(f"{finding.name}: {finding.words}", flush=True)
    usable = [finding.name for finding in findings if finding.usable]
    if not usable:
        print("no backend is usable here", file=sys.stderr)
        return 1
    return try_out(usable) if test else 0


def machine() -> list[str]:
    """What bears on the choice of a backend."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    devices = f"{torch.accelerator.device_count()} × {accelerator}" if accelerator else "no accelerator"
    return [
        f"torchcomms {torchcomms.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        f"{platform.system()} {platform.release()} on {platform.machine()}, {cores} cores usable here, {devices}",
    ]


def examine(name: str) -> Finding:
    """Ask a backend what it can do here; opens nothing."""
    try:
        backend = find(name)
        capabilities = backend.capabilities()
    except CommsError as error:
        return Finding(name, False, f"broken: {error}")
    if not capabilities.usable:
        return Finding(name, False, f"not usable here: {capabilities.reason}")
    words = [_facts(capabilities), *(_built(backend.__module__) or filter(None, [capabilities.reason]))]
    return Finding(name, True, f"usable: {'; '.join(words)}")


def _facts(capabilities: Capabilities) -> str:
    dtypes = "every dtype" if capabilities.dtypes is None else f"{len(capabilities.dtypes)} dtypes"
    bound = capabilities.death_bound_ms
    death = "does not notice deaths" if bound is None else f"notices deaths within {bound:g} ms"
    found = {"inline": "mismatches found on the way", "side channel": "mismatches found beside", "none": ""}
    words = [f"{', '.join(sorted(capabilities.devices))} tensors of {dtypes}", death, found[capabilities.mismatch]]
    return "; ".join(word for word in words if word)


def _built(module: str) -> list[str]:
    """Where a backend's native part comes from, if its package has a module `native` that expects one."""
    native = f"{module.rpartition('.')[0]}.native"
    if importlib.util.find_spec(native) is None:
        return []
    expected = importlib.import_module(native).expected()
    return [
        f"native core {expected.how}" if expected.core else f"no native core ({expected.how}): slower, over sockets"
    ]


def try_out(names: list[str], command: tuple[str, ...] = (sys.executable, "-u", "-m", MODULE)) -> int:
    """Run an all_reduce on two ranks of each backend; 1 if any fails. One that ends its ranks does not end the test."""
    print("\ntesting an all_reduce on two ranks of each:", flush=True)
    left, failed = list(names), False
    while left:
        heard: list[str] = []

        def show(rank: int, is_error: bool, line: str, end: str, heard: list[str] = heard) -> None:
            if rank == 0 and line.startswith(MARKER):
                name, trouble = json.loads(line.removeprefix(MARKER))
                heard.append(trouble)
                print(f"{name}: {trouble or 'works'}", flush=True)

        launch(Job((*command, *left), 2), show)
        failed = failed or any(heard) or len(heard) < len(left)
        if len(heard) < len(left):
            print(f"{left[len(heard)]}: its ranks did not come to the end", flush=True)
        left = left[len(heard) + 1 :]
    return int(failed)
