"""Custom kernels of one compilation: which artifact each use got, and what is linked into the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from executor import kernels
from executor.errors import CompileError, KernelError

Arguments = tuple["kernels.TensorSpec | bool | int | float", ...]


@dataclass(slots=True)
class Kernels:
    """Artifacts for one target. `notes` tell, in words, what became of each kernel."""

    target: str
    enabled: bool
    notes: list[str] = field(default_factory=list)
    _artifacts: dict[str, Any] = field(default_factory=dict)
    _references: dict[tuple[str, str], torch.export.ExportedProgram | CompileError] = field(default_factory=dict)

    def find(self, name: str) -> Any | None:
        """The kernel of that name; None if nobody provides it."""
        return kernels.find(name)

    def artifact(self, kernel: Any, arguments: Arguments, outputs: tuple[kernels.TensorSpec, ...]) -> Any | None:
        """Code for this target, checked against the contract; None where they are off or do not serve it."""
        if not self.enabled:
            self.note(f"{kernel.name}: custom kernels are off; its reference is compiled instead")
            return None
        try:
            made = kernel.artifact(*arguments, target=self.target)
        except Exception as error:
            if type(error).__name__ != "UnsupportedTarget":
                raise KernelError(kernel.name, f"its provider makes no code for {self.target}: {error}") from error
            self.note(f"{kernel.name}: its provider does not serve {self.target}; its reference is compiled instead")
            return None
        self._check(kernel.name, made, outputs)
        self.note(f"{kernel.name}: linked ({made.form}, {len(made.code)} bytes)")
        return self._artifacts.setdefault(made.digest, made)

    def reference(
        self, name: str, arguments: Arguments, make: Callable[[], torch.export.ExportedProgram]
    ) -> torch.export.ExportedProgram:
        """What kernel `name` means for `arguments`: from `make` at its first use, or the CompileError that it raised.

        The graph is shared by all uses, since making it takes seconds.
        """
        key = (name, repr(arguments))
        if key not in self._references:
            try:
                self._references[key] = make()
            except CompileError as error:
                self._references[key] = error
        found = self._references[key]
        if isinstance(found, CompileError):
            raise found
        return found

    def note(self, text: str) -> None:
        """Keep a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def sources(self) -> dict[str, str]:
        """Artifacts in C, each a translation unit, under unique names."""
        return {
            symbol_of(made): f"#define {made.symbol} {symbol_of(made)}\n{made.code.decode()}"
            for made in self._artifacts.values()
            if made.form == "c"
        }

    def objects(self) -> dict[str, bytes]:
        """Artifacts as relocatable objects, under unique names."""
        return {made.symbol: bytes(made.code) for made in self._artifacts.values() if made.form == "object"}

    def _check(self, name: str, made: Any, outputs: tuple[kernels.TensorSpec, ...]) -> None:
        if made.form not in ("c", "object"):
            raise KernelError(name, f"its artifact has form {made.form!r}; due 'c' or 'object'")
        if not runs_on(made.target, self.target):
            raise KernelError(name, f"its artifact is for {made.target!r}; due {self.target!r} or less")
        came = [(tuple(spec.shape), spec.dtype) for spec in made.outputs]
        due = [(spec.shape, spec.dtype) for spec in outputs]
        if came != due:
            raise KernelError(name, f"its artifact has outputs {came}; the model's operation gives {due}")
        other = [a for a in self._artifacts.values() if a.symbol == made.symbol and a.digest != made.digest]
        if made.form == "object" and other:
            raise KernelError(
                name, f"two different artifacts have the symbol {made.symbol!r}; its provider must tell them apart"
            )


def symbol_of(artifact: Any) -> str:
    """The C name of an artifact within a program: that of one in C is made unique by its digest."""
    return f"{artifact.symbol}_{artifact.digest[:16]}" if artifact.form == "c" else str(artifact.symbol)


def runs_on(target: str, machine: str) -> bool:
    """Whether code for `target` runs on `machine`: the same base, and no feature that it lacks."""
    base, *features = target.split("+")
    machine_base, *has = machine.split("+")
    return base == machine_base and set(features) <= set(has)
