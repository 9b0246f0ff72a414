"""Checks of what a reduction means where dtypes are narrow or special: averages, halves, bool, NaN, refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from torchcomms.backend import Backend, ReduceOp
from torchcomms.errors import UnsupportedReduction
from torchcomms.testing.messages import claimed_dtypes
from torchcomms.testing.operations import finish
from torchcomms.testing.report import Check, expect
from torchcomms.testing.samples import OPS, agree, all_dtypes, reductions
from torchcomms.testing.world import World, results

RANKS = 3
NAN = float("nan")


def reduced_here(values: Sequence[Sequence[float]], dtype: str, op: ReduceOp, backend: Backend) -> list[float]:
    """all_reduce of row r of `values` on rank r, as plain numbers; nothing if the dtype is not claimed."""
    if dtype not in claimed_dtypes(backend):
        return []
    tensor = torch.tensor(values[backend.rank]).to(all_dtypes()[dtype]).to(backend.device)
    finish(backend.all_reduce(tensor, op))
    seen = tensor.cpu()
    return (seen.view(torch.uint8) if dtype == "bool" else seen.double()).tolist()


def means(
    values: Sequence[Sequence[float]],
    dtypes: Sequence[str],
    op: ReduceOp,
    wanted: Sequence[float],
    world: World[Backend],
) -> None:
    """Raise unless the reduction of `values` is `wanted` on every rank."""
    for dtype in dtypes:
        for rank, seen in enumerate(results(world, partial(reduced_here, values, dtype, op))):
            right = not seen or agree(_double(seen), _double(wanted))
            expect(right, f"{op.kind} of {list(values)} in {dtype} is {seen} on rank {rank}, not {list(wanted)}")


def _double(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def integer_average(world: World[Backend]) -> None:
    signed = [[-4, 100, 1], [-3, 100, 0], [-1, 100, 1]]
    means(signed, ("int8", "int16", "int32", "int64"), ReduceOp.AVG, [-2, 100, 0], world)
    unsigned = [[200, 0], [201, 1], [202, 1]]
    means(unsigned, ("uint8", "uint16", "uint32", "uint64"), ReduceOp.AVG, [201, 0], world)


def wrapping(world: World[Backend]) -> None:
    means([[100], [100], [100]], ("int8",), ReduceOp.SUM, [44], world)
    means([[200], [200], [200]], ("uint8",), ReduceOp.SUM, [88], world)
    means([[40000], [40000], [1]], ("uint16",), ReduceOp.SUM, [14465], world)


def rounded_once(world: World[Backend]) -> None:
    means([[256], [1], [1]], ("bfloat16",), ReduceOp.SUM, [258], world)
    means([[2048], [1], [1]], ("float16",), ReduceOp.SUM, [2050], world)
    means([[16], [1], [1]], ("float8_e4m3fn",), ReduceOp.SUM, [18], world)
    means([[40000], [40000], [-40000]], ("float16",), ReduceOp.SUM, [40000], world)


def premultiplied(world: World[Backend]) -> None:
    halves = ("float16", "bfloat16", "float32", "float64")
    means([[1, 2], [3, 4], [5, 6]], halves, ReduceOp.PREMUL_SUM(0.25), [2.25, 3.0], world)


def logical(world: World[Backend]) -> None:
    rows = [[0, 1, 0, 1], [0, 1, 1, 1], [0, 1, 0, 0]]
    for op, wanted in (
        (ReduceOp.SUM, [0, 1, 1, 1]),
        (ReduceOp.MAX, [0, 1, 1, 1]),
        (ReduceOp.PRODUCT, [0, 1, 0, 0]),
        (ReduceOp.MIN, [0, 1, 0, 0]),
        (ReduceOp.BXOR, [0, 1, 1, 0]),
    ):
        means(rows, ("bool",), op, wanted, world)


def not_a_number(world: World[Backend]) -> None:
    rows: list[list[float]] = [[1, NAN, 3, NAN], [2, 1, NAN, NAN], [3, 2, 5, 4]]
    floats = ("float16", "bfloat16", "float32", "float64")
    means(rows, floats, ReduceOp.MIN, [1, NAN, NAN, NAN], world)
    means(rows, floats, ReduceOp.MAX, [3, NAN, NAN, NAN], world)


def refused(world: World[Backend]) -> None:
    for rank, wrong in enumerate(results(world, _meaningless)):
        expect(not wrong, f"rank {rank}: {wrong}")


def _meaningless(backend: Backend) -> str:
    for name in claimed_dtypes(backend):
        dtype = all_dtypes()[name]
        for op in (op for op in OPS if op.kind not in {one.kind for one in reductions(dtype)}):
            tensor = torch.zeros(dtype.itemsize, dtype=torch.uint8, device=backend.device).view(dtype)
            try:
                finish(backend.all_reduce(tensor, op))
            except UnsupportedReduction:
                continue
            return f"{op.kind} of {name} is no UnsupportedReduction"
    return ""


def _check(name: str, clause: str, function: Callable[[World[Backend]], None]) -> Check:
    return Check(f"reduction.{name}", clause, function, RANKS)


CHECKS: Sequence[Check] = (
    _check("integer_average", "An integer average is a 64-bit sum, divided and rounded toward zero.", integer_average),
    _check("wrap", "Integer sums wrap as in torch.", wrapping),
    _check("halves", "Half types accumulate in float32 and are rounded once.", rounded_once),
    _check("premul_sum", "PREMUL_SUM multiplies each rank's elements by the factor, then adds.", premultiplied),
    _check("bool", "On bool, SUM and MAX are logical or, PRODUCT and MIN logical and.", logical),
    _check("nan", "MIN and MAX of a NaN are NaN.", not_a_number),
    _check("refused", "A reduction without a meaning for the dtype is an UnsupportedReduction.", refused),
)
