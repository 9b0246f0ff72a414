"""Loads emitted Triton modules and launches them on tensors, one module for each bucket of sizes."""

from __future__ import annotations

import hashlib
import itertools
import linecache
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch

from helium.emit.triton import source
from helium.emit.triton_schedule import power_of_two
from helium.kernel import Kernel
from helium.specialise import Bound


def load(text: str) -> ModuleType:
    """Execute an emitted module. Triton reads the text again, so it is left where `inspect` finds it.

    Raises:
        ModuleNotFoundError: triton is not installed.
    """
    name = f"helium_triton_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = ModuleType(name)
    exec(compile(text, file, "exec"), module.__dict__)
    return module


class Launcher:
    """A kernel on the accelerator that its tensors are on; under TRITON_INTERPRET=1 also on the CPU.

    Outputs are fresh and the caller's. Launches go to the device's current stream and are not waited for.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._functions: dict[Hashable, Any] = {}

    def __call__(self, *args: Any) -> Any:
        """Launch for these tensors and numbers."""
        bound = self._kernel.bind(*args)
        key = (bound.key, _bucket(bound))
        function = self._functions.get(key)
        if function is None:
            text = source(self._kernel, *args)
            function = self._functions[key] = getattr(load(text), self._kernel.source.name)
        with _current(bound):
            return function(**bound.tensors, **bound.scalars)


def _bucket(bound: Bound) -> Hashable:
    """What the default schedule depends on: sizes up to their power of two, and integers."""
    sizes = itertools.chain.from_iterable(tensor.shape for tensor in bound.tensors.values())
    integers = tuple(value for value in bound.scalars.values() if isinstance(value, int))
    return (tuple(map(power_of_two, sizes)), integers)


def _current(bound: Bound) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be that of the tensors."""
    device = next((tensor.device for tensor in bound.tensors.values()), torch.device("cpu"))
    if device.type == "cpu":
        return nullcontext()
    context: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return context
