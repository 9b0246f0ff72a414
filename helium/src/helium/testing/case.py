"""One example of a kernel's use, and what follows from it: specs, symbols, and when two results agree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from helium.contract import TensorSpec

TOLERANCES = {
    torch.float16: (2e-3, 1e-3),
    torch.bfloat16: (2e-2, 1e-2),
    torch.float32: (1e-4, 1e-5),
    torch.float64: (1e-9, 1e-10),
}
"""Relative and absolute, for each dtype of a result; others are exact. Room for another order of sums, no more."""


@dataclass(frozen=True, slots=True)
class Case:
    """Arguments to try a kernel with.

    Args:
        args: Tensors on the CPU, and numbers, as the kernel takes them. Use sizes that differ from each other.
        rtol, atol: Instead of the tolerance of the result's dtype.
        symbolic: Whether the kernel may be compiled for sizes that it learns when it is called. Equal sizes greater
            than 1 become one symbol.
    """

    args: tuple[Any, ...]
    rtol: float | None = None
    atol: float | None = None
    symbolic: bool = True

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors among the arguments, in order."""
        return tuple(arg for arg in self.args if isinstance(arg, torch.Tensor))

    def with_tensors(self, tensors: Iterable[torch.Tensor]) -> tuple[Any, ...]:
        """The arguments with other tensors in place."""
        rest = iter(tensors)
        return tuple(next(rest) if isinstance(arg, torch.Tensor) else arg for arg in self.args)

    def fresh(self) -> tuple[Any, ...]:
        """The arguments with contiguous copies of the tensors."""
        return self.with_tensors(tensor.clone(memory_format=torch.contiguous_format) for tensor in self.tensors)

    def specs(self) -> tuple[Any, ...]:
        """The arguments of `abstract` and `artifact` for :meth:`fresh` tensors: specs, and the numbers as they are."""
        return tuple(_spec(arg) if isinstance(arg, torch.Tensor) else arg for arg in self.args)

    def sizes(self) -> dict[str, int]:
        """A symbol for each size greater than 1, in order of appearance."""
        found = dict.fromkeys(size for tensor in self.tensors for size in tensor.shape if size > 1)
        return {f"n{i}": size for i, size in enumerate(found)}

    def symbolic_specs(self) -> tuple[Any, ...]:
        """:meth:`specs`, with the symbols of :meth:`sizes` in the place of the sizes."""
        names = {size: name for name, size in self.sizes().items()}
        return tuple(_spec(arg, names) if isinstance(arg, torch.Tensor) else arg for arg in self.args)

    def difference(self, actual: torch.Tensor, expected: torch.Tensor) -> str:
        """Why the two do not agree; empty if they do. NaN agrees with NaN."""
        rtol, atol = TOLERANCES.get(expected.dtype, (0.0, 0.0))
        rtol, atol = (rtol if self.rtol is None else self.rtol), (atol if self.atol is None else self.atol)
        if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
            return f"{actual.dtype}{list(actual.shape)} is not {expected.dtype}{list(expected.shape)}"
        close = torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
        if close.all():
            return ""
        worst = (actual.double() - expected.double()).abs().nan_to_num(torch.inf)[~close].max().item()
        return (
            f"{int((~close).sum())} of {close.numel()} elements differ, by up to {worst:g} (rtol {rtol}, atol {atol})"
        )


def dtype_name(dtype: torch.dtype) -> str:
    """The contract's name of a dtype."""
    return str(dtype).removeprefix("torch.")


def _spec(tensor: torch.Tensor, names: dict[int, str] | None = None) -> TensorSpec:
    shape = [(names or {}).get(size, size) for size in tensor.shape]
    return TensorSpec.contiguous(shape, dtype_name(tensor.dtype))
