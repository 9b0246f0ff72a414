"""Ahead of time: a kernel as one relocatable object with a C symbol, for a program that holds no Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from helium import ir


class Spec(Protocol):
    """What is read of a tensor spec; any object with these attributes will do. Symbols are names, "n", or "4*n"."""

    @property
    def shape(self) -> tuple[int | str, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def strides(self) -> tuple[int | str, ...]: ...


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """A relocatable object: position independent, single-threaded, reentrant, no undefined symbols.

    ``int symbol(void *const *buffers, const int64_t *sizes, void *workspace)`` returns 0, or 1 + the index of the
    guard of the kernel that does not hold. `symbols` names the entries of `sizes`; `workspace` is in bytes, 64-aligned.
    """

    code: bytes
    symbol: str
    symbols: tuple[str, ...]
    workspace: int


def emit_object(
    kernel: ir.Kernel,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    scalars: Mapping[str, float | int | bool],
    target: str,
) -> ObjectCode:
    """Compile `kernel` for `target`.

    Args:
        kernel: The IR, specialised to the dtypes of `inputs`.
        inputs: One spec for each tensor parameter, in order. Names in shapes and strides become symbols.
        outputs: One spec for each output, in order; shapes over the same symbols.
        scalars: The value of each scalar parameter; baked into the code.
        target: ``<arch>-<os>[+<feature>…]``, such as "x86_64-linux+avx2"; never "host".

    Raises:
        UnsupportedTarget: LLVM here does not know the target; names those it does.
    """
    raise AssertionError("the native emitter is not there yet")
