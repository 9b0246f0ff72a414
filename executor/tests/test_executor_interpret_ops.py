"""The interpreter's operations are torch's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor import ir
from executor.interpret_ops import OPERATIONS, apply, from_storage, to_storage

pytestmark = pytest.mark.unit

FLOATS = np.array([-math.inf, -7.5, -2.5, -1.0, -0.0, 0.0, 0.5, 1.5, 3.25, math.inf, math.nan], np.float32)
INTEGERS = np.array([-9, -2, -1, 0, 1, 2, 7, 63], np.int64)
TORCH: dict[str, Any] = {
    "and": torch.bitwise_and, "div": torch.true_divide, "idiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "imod": torch.remainder, "max": torch.maximum, "min": torch.minimum, "not": torch.bitwise_not,
    "or": torch.bitwise_or, "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift,
    "trunc_div": lambda a, b: torch.div(a, b, rounding_mode="trunc"), "xor": torch.bitwise_xor,
}  # fmt: skip
OF_INTEGERS = {"and", "idiv", "imod", "not", "or", "shl", "shr", "trunc_div", "xor"}
OF_BOTH = {"abs", "add", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "neg", "sub", "sign", "fmod", "where"}


@pytest.mark.parametrize("name", sorted(OPERATIONS.keys() - OF_INTEGERS))
def test_operations_on_floats_are_torch_s(name: str) -> None:
    _compare(name, _arguments(name, FLOATS))


@pytest.mark.parametrize("name", sorted(OF_INTEGERS | OF_BOTH))
def test_operations_on_integers_are_torch_s(name: str) -> None:
    args = _arguments(name, INTEGERS)
    if len(args) > 1 and name != "where":
        kept = (args[1] > 0) & (args[1] < 63) if name.startswith("sh") else args[1] != 0
        args = [arg[kept] for arg in args]
    _compare(name, args)


def _arguments(name: str, values: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The values, or all pairs of them, for `where` with a condition before them."""
    pairs = [np.repeat(values, len(values)), np.tile(values, len(values))]
    return [values] if name in ir.UNARY else [pairs[0] < pairs[1], *pairs] if name == "where" else pairs


def _compare(name: str, args: list[np.ndarray[Any, Any]]) -> None:
    due = TORCH.get(name, getattr(torch, name, None))(*map(torch.from_numpy, args)).numpy()
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(apply(name, args, due.dtype.name), due, rtol=2e-6)


@pytest.mark.parametrize("name", sorted(ir.UNARY | ir.BINARY | ir.COMPARISONS))
def test_every_operation_of_the_ir_is_there(name: str) -> None:
    assert name in OPERATIONS or name == "cast"


@pytest.mark.parametrize(
    ("value", "dtype", "due"),
    [(2.9, "int64", 2), (-2.9, "int8", -2), (0.1, "bool", True), (-0.0, "bool", False), (300, "uint8", 44)],
)
def test_casts_truncate_wrap_and_ask_whether_zero(value: float, dtype: str, due: int) -> None:
    assert apply("cast", [np.asarray(value)], dtype) == due


@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_bfloat16_rounds_as_torch_does(values: list[float]) -> None:
    array = np.array(values, np.float32)
    due = torch.from_numpy(array).to(torch.bfloat16).to(torch.float32).numpy()
    np.testing.assert_array_equal(from_storage(to_storage(array, "bfloat16"), "bfloat16"), due)
