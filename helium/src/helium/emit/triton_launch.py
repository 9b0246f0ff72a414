"""Loads emitted Triton modules and launches them on tensors, one module for each bucket of sizes."""

from __future__ import annotations

import hashlib
import itertools
import linecache
import os
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Final

import torch

from helium.decorator import Kernel
from helium.emit.triton import source
from helium.emit.triton_schedule import power_of_two
from helium.errors import DeviceMismatch
from helium.specialise import Bound

_USABLE: Final = ("cuda", "xpu", "cpu under TRITON_INTERPRET=1")


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
        """Launch for these tensors and numbers.

        Raises:
            DeviceMismatch: The tensors are on several devices, or on the CPU without the interpreter.
        """
        bound = self._kernel.bind(*args)
        device = self._device(bound)
        key = (bound.key, _bucket(bound))
        function = self._functions.get(key)
        if function is None:
            text = source(self._kernel, *args)
            function = self._functions[key] = getattr(load(text), self._kernel.source.name)
        with _current(device):
            return function(**bound.tensors, **bound.scalars)

    def _device(self, bound: Bound) -> torch.device:
        devices: list[torch.device] = list(dict.fromkeys(tensor.device for tensor in bound.tensors.values()))
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        if len(devices) != 1 or (devices[0].type == "cpu" and not interpreted):
            raise DeviceMismatch(self._kernel.name, list(map(str, devices)), _USABLE)
        return devices[0]


def _bucket(bound: Bound) -> Hashable:
    """What the default schedule depends on: sizes up to their power of two, and integers."""
    sizes = itertools.chain.from_iterable(tensor.shape for tensor in bound.tensors.values())
    integers = tuple(value for value in bound.scalars.values() if isinstance(value, int))
    return (tuple(map(power_of_two, sizes)), integers)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be that of the tensors."""
    if device.type == "cpu":
        return nullcontext()
    context: AbstractContextManager[Any] = torch.get_device_module(device).device(device)
    return context
