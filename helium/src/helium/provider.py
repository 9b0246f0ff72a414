"""helium's own kernel provider: finds the library's kernels, and every kernel that a program has defined, by name."""

from __future__ import annotations

import importlib
from typing import Final

from helium.contract import INTERFACE, KernelCallable


class Provider:
    """The :class:`helium.contract.KernelProvider` of the namespace "helium"."""

    interface = INTERFACE
    namespace = "helium"

    def __init__(self) -> None:
        self._kernels: dict[str, KernelCallable] = {}

    def register(self, kernel: KernelCallable) -> None:
        """Let `find` know a kernel. Defined again under its name, as in a notebook, the newer one is found."""
        self._kernels[kernel.name] = kernel

    def find(self, name: str) -> KernelCallable | None:
        """The kernel "helium::<kernel>", or None. The first look for an unknown name imports the library."""
        if not name.startswith(f"{self.namespace}::"):
            return None
        if name not in self._kernels:
            importlib.import_module("helium.library")  # its kernels register as they are defined
        return self._kernels.get(name)


provider: Final = Provider()
"""What the entry point of the group ``helium.kernels.v1`` names."""
