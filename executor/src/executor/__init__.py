"""Compile a PyTorch model ahead of time into one program file that runs without torch, with the same numbers."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from executor.errors import ExecutorError
from executor.runtime import Runtime, load

if TYPE_CHECKING:
    from torch import nn

    from executor.program import Program

__all__ = ["ExecutorError", "Runtime", "__version__", "compile", "load"]
__version__ = "0.1.0"


def compile(
    model: nn.Module | Mapping[str, tuple[nn.Module, tuple[Any, ...]]],
    args: tuple[Any, ...] | None = None,
    *,
    target: str = "host",
    dynamic_shapes: object = None,
    kernels: Literal["auto", "none"] = "auto",
) -> Program:
    """Compile a model for `target` into a Program. Needs torch (`pip install 'pentad-executor[compile]'`).

    `args` are example arguments: tensors and constants in tuples, lists and dicts; their shapes and dtypes become the
    program's. Or give a dict from method name to (module, example arguments): methods share the tensors that their
    modules share, and buffers that any method writes are state, with the values that they have now.

    Custom operations whose namespace has a provider in `helium.kernels.v1` are compiled by it and linked; with
    `kernels="none"`, or where it does not serve the target, what they mean is compiled instead.

    Raises CompileError or one of its subclasses (see executor.errors); it names the operation and the model's line.
    """
    from executor.compiler import compile_program

    return compile_program(model, args, target, dynamic_shapes, kernels)


def _warn_of_clashes() -> None:
    """Another distribution that owns this import name would be imported by chance."""
    # Looked for by the name of its folder: importlib.metadata would take two thirds of this package's import.
    for folder in sys.path:
        try:
            found = [name for name in os.listdir(folder or ".") if name.startswith("executor-")]
        except OSError:
            continue
        for name in found:
            if name.endswith((".dist-info", ".egg-info")):
                distribution = name.rsplit(".", 1)[0].replace("-", " ")
                problem = f"the distribution {distribution} installs a package of this name too; pip uninstall executor"
                warnings.warn(problem, RuntimeWarning, stacklevel=2)


_warn_of_clashes()
