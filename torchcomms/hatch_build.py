"""Hatch's hook: compile the core of shm into the wheel where there is a C compiler, else build a pure wheel.

Editable installs get none: there the core is compiled at first use, so that it follows its sources.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHM = Path("src", "torchcomms", "providers", "shm")
INSIDE = "torchcomms/providers/shm/_core.abi3.so"


class CoreBuildHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Adds `_core.abi3.so` and the tag of this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or self.target_name != "wheel":
            return
        output = Path(self.directory, "_core.abi3.so")
        output.parent.mkdir(parents=True, exist_ok=True)
        problem = _builder(Path(self.root, SHM, "build.py")).compile_core(output, portable=True)
        if problem:
            self.app.display_warning(
                f"the core of shm is not in this wheel, it will be compiled at first use: {problem}"
            )
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{os.environ.get('TORCHCOMMS_PLATFORM') or _platform()}"
        build_data["force_include"][str(output)] = INSIDE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        Path(self.directory, "_core.abi3.so").unlink(missing_ok=True)


def _platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _builder(path: Path) -> ModuleType:
    """The module that knows how to compile; by its path, since nothing is installed while a wheel is built."""
    spec = importlib.util.spec_from_file_location("torchcomms_shm_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
