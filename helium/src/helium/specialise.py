"""From the arguments of a call to what the compiler needs of them: dtypes and ranks, scalars, constants."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from helium import dtypes, ir
from helium.errors import ArgumentMismatch
from helium.types import DType

Key: TypeAlias = tuple[object, ...]
"""What two calls share when one IR serves both."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Arguments, sorted by what the compiler makes of them; defaults filled in."""

    params: tuple[ir.TensorParam | ir.ScalarParam | None, ...]
    tensors: dict[str, Any]
    """Tensors or tensor specs by name, in order."""
    scalars: dict[str, float | int | bool]
    constants: dict[str, object]
    key: Key


def bind(name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> Bound:
    """Sort the arguments of a call.

    Raises:
        ArgumentMismatch: Too many, too few, or one of a kind that kernels do not take.
    """
    try:
        given = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentMismatch(name, str(error), f"its signature is {signature}") from error
    given.apply_defaults()
    params: list[ir.TensorParam | ir.ScalarParam | None] = []
    tensors: dict[str, Any] = {}
    scalars: dict[str, float | int | bool] = {}
    constants: dict[str, object] = {}
    for parameter, value in given.arguments.items():
        param = _param(name, parameter, value)
        params.append(param)
        group: dict[str, Any] = (
            tensors if isinstance(param, ir.TensorParam) else constants if param is None else scalars
        )
        group[parameter] = value
    return Bound(tuple(params), tensors, scalars, constants, (tuple(params), tuple(constants.items())))


def _param(kernel: str, name: str, value: Any) -> ir.TensorParam | ir.ScalarParam | None:
    if isinstance(value, bool):
        return ir.ScalarParam(name, "bool")
    if isinstance(value, (int, torch.SymInt)):
        return ir.ScalarParam(name, "int64")
    if isinstance(value, (float, torch.SymFloat)):
        return ir.ScalarParam(name, "float64")
    if value is None or isinstance(value, (str, torch.dtype)):
        return None
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return ir.TensorParam(name, dtype_name(kernel, name, value.dtype), len(value.shape))
    kind = type(value).__name__
    raise ArgumentMismatch(kernel, f"argument {name} is a {kind}", "pass tensors, numbers, strings, dtypes or None")


def dtype_name(kernel: str, name: str, dtype: torch.dtype | str) -> DType:
    """helium's name of a dtype.

    Raises:
        ArgumentMismatch: Kernels do not have it.
    """
    found = dtypes.NAMES.get(dtype) if isinstance(dtype, torch.dtype) else dtype if dtype in dtypes.TORCH else None
    if found is None:
        raise ArgumentMismatch(kernel, f"argument {name} has dtype {dtype}", f"use one of {', '.join(dtypes.TORCH)}")
    return found
