"""The kernel under test with one case: what it returns, compiled and called once and kept for all checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch

from helium.testing.case import Case
from helium.testing.elf import Elf
from helium.testing.native import Library, Run, compiler

T = TypeVar("T")


class Broken(Exception):
    """The clause under test does not hold; the text says what was seen."""


class Unclaimed(Exception):
    """The check cannot be made here, or depends on another that fails; the text says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: a stable id, the clause of the contract that it holds to, and the function that raises."""

    id: str
    clause: str
    run: Callable[[Subject], None]


def tensors(result: Any) -> tuple[torch.Tensor, ...]:
    """A kernel's result as a tuple."""
    several: tuple[torch.Tensor, ...] = result if isinstance(result, tuple) else (result,)
    if not all(isinstance(tensor, torch.Tensor) for tensor in several):
        raise Broken(f"the result is {result!r}, neither a tensor nor a tuple of tensors")
    return several


def is_unsupported(error: Exception) -> bool:
    """Whether `error` says that a target is not supported; by name, as a provider may bring its own class."""
    return any(cls.__name__ == "UnsupportedTarget" for cls in type(error).__mro__)


class Subject:
    """One kernel, one case, one target."""

    def __init__(self, kernel: Any, case: Case, target: str) -> None:
        self.kernel, self.case, self.target = kernel, case, target

    @cached_property
    def outputs(self) -> tuple[torch.Tensor, ...]:
        """Of a call; unclaimed where the call raises, which is the matter of "reference-agrees"."""
        return self._otherwise("reference-agrees", lambda: tensors(self.kernel(*self.case.fresh())))

    @cached_property
    def expected(self) -> tuple[torch.Tensor, ...]:
        """Of the reference."""
        return self._otherwise("reference-agrees", lambda: tensors(self.kernel.reference(*self.case.fresh())))

    @cached_property
    def concrete(self) -> Any:
        """The artifact for the case's sizes."""
        return self._otherwise("artifact-compiles", lambda: self.compile(self.case.specs()))

    @cached_property
    def library(self) -> Library:
        """The concrete artifact, linked."""
        return self._otherwise("artifact-links", lambda: self.link(self.concrete))

    @cached_property
    def run(self) -> Run:
        """One call of the concrete artifact."""
        return self.library(self.case_tensors(), {})

    def case_tensors(self) -> tuple[torch.Tensor, ...]:
        """Fresh contiguous copies of the case's tensors."""
        return tuple(arg for arg in self.case.fresh() if isinstance(arg, torch.Tensor))

    def compile(self, specs: tuple[Any, ...]) -> Any:
        """The artifact for `specs`; unclaimed where the kernel does not support the target."""
        try:
            return self.kernel.artifact(*specs, target=self.target)
        except Exception as error:
            if is_unsupported(error):
                raise Unclaimed(f"target {self.target}: {error}") from error
            raise

    def link(self, artifact: Any) -> Library:
        """`artifact` as a function; unclaimed without a C compiler, or where calling it would end the process."""
        if compiler() is None:
            raise Unclaimed("there is no C compiler (cc, gcc or clang) to link the artifact")
        if artifact.form == "object" and undefined(artifact):
            raise Unclaimed("see artifact-no-undefined-symbols")
        return Library(artifact)

    def compare(self, actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], what: str) -> None:
        """Raise Broken where two results differ."""
        if len(actual) != len(expected):
            raise Broken(f"{what}: {len(actual)} outputs instead of {len(expected)}")
        for i, (left, right) in enumerate(zip(actual, expected, strict=True)):
            if difference := self.case.difference(left, right):
                raise Broken(f"{what}: output {i}: {difference}")

    def _otherwise(self, check: str, attempt: Callable[[], T]) -> T:
        try:
            return attempt()
        except Unclaimed:
            raise
        except Exception as error:
            raise Unclaimed(f"see {check}") from error


def undefined(artifact: Any) -> tuple[str, ...]:
    """The names that an object wants from elsewhere; the linker itself makes the offset table."""
    return tuple(name for name in Elf(artifact.code).undefined if name != "_GLOBAL_OFFSET_TABLE_")
