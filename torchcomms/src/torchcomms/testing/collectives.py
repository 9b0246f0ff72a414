"""Checks of the derived operations on float32: values, uneven and empty sizes, inputs kept, same bits, order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch

from torchcomms.backend import Backend, ReduceOp
from torchcomms.testing.operations import ROOTED, Case, check_cases, finish
from torchcomms.testing.report import Check, expect
from torchcomms.testing.samples import ARITHMETIC, ORDER
from torchcomms.testing.world import World, results

RANKS = 3
SIZES = (0, 1, 7, 4099, 50_001)  # elements: empty, fewer than ranks, short, cut unevenly, long
SCALES = (0, 1, 1000, 10_001)  # elements for each rank more
ROUNDS = 20


def cases_of(operation: str) -> list[Case]:
    """The sizes, roots and reductions of one operation."""
    if operation in ("all_reduce", "reduce", "scan"):
        ops = [op for op in (*ARITHMETIC, *ORDER) if operation != "scan" or op != ReduceOp.AVG]
        sized = [Case(operation, count, root=1) for count in SIZES]
        return sized + [Case(operation, 100, op=op, root=1) for op in ops]
    sizes = SIZES if operation == "broadcast" else SCALES
    rooted = [Case(operation, 7, root=root) for root in range(1, RANKS)] if operation in ROOTED else []
    return [Case(operation, count) for count in sizes] + rooted


def values(operation: str, world: World[Backend]) -> None:
    check_cases(world, cases_of(operation))


def inputs_kept(operation: str, world: World[Backend]) -> None:
    check_cases(world, [Case(operation, count) for count in (7, 20_000)], kept=True)


def same_bits(world: World[Backend]) -> None:
    found = results(world, _noisy)
    expect(all(one == found[0] for one in found), "ranks hold different bits after one all_reduce")
    repeats = zip(found[0][::2], found[0][1::2], strict=True)
    expect(all(first == second for first, second in repeats), "a repeat differs")


def _noisy(backend: Backend) -> list[bytes]:
    seen = []
    for dtype in (torch.float32, torch.bfloat16):
        for count in (1000, 50_000):
            generator = torch.Generator().manual_seed(backend.rank)
            start = torch.randn(count, generator=generator).to(dtype)
            for _ in range(2):
                tensor = start.to(backend.device, copy=True)
                finish(backend.all_reduce(tensor, ReduceOp.SUM))
                seen.append(tensor.cpu().view(torch.uint8).numpy().tobytes())
    return seen


def barrier(world: World[Backend]) -> None:
    for times in zip(*results(world, _meet), strict=True):
        last, first = max(entered for entered, _ in times), min(left for _, left in times)
        expect(first >= last, f"a rank left a barrier {last - first:.6f} s before the last one had come")


def _meet(backend: Backend) -> list[tuple[float, float]]:
    """When this rank came to each barrier and when it left; one clock for all processes of a machine."""
    rounds = []
    for number in range(ROUNDS):
        until = time.monotonic() + (1e-3 if number % backend.size == backend.rank else 0.0)
        while time.monotonic() < until:
            continue
        entered = time.monotonic()
        backend.barrier().wait_host(entered + backend.timeout)
        rounds.append((entered, time.monotonic()))
    return rounds


def in_order(world: World[Backend]) -> None:
    expected = [9.0] * world.size
    expect(results(world, _overlap) == expected, "two operations in flight, waited for in any order, go wrong")


def _overlap(backend: Backend) -> float:
    first, second = torch.ones(50_000, device=backend.device), torch.full((3,), 2.0, device=backend.device)
    tickets = [backend.all_reduce(first, ReduceOp.SUM), backend.all_reduce(second, ReduceOp.SUM)]
    for ticket in tickets if backend.rank else reversed(tickets):
        ticket.wait()
    return float(first.mean() + second.mean())


def _check(name: str, clause: str, function: Callable[[World[Backend]], object]) -> Check:
    return Check(f"derived.{name}", clause, function, RANKS)


def _values(operation: str, clause: str) -> Check:
    return _check(operation, clause, partial(values, operation))


CHECKS: Sequence[Check] = (
    _values("broadcast", "broadcast copies the root's tensor to every rank."),
    _values("all_reduce", "all_reduce leaves the reduction over all ranks on every rank."),
    _check("same_bits", "Results are the same bits on every rank and every time.", same_bits),
    _values("reduce", "reduce leaves the reduction on the root."),
    _check(
        "reduce_inputs", "reduce leaves the tensors of the other ranks as they are.", partial(inputs_kept, "reduce")
    ),
    _values("all_gather", "all_gather puts every rank's tensor on every rank; lengths may differ."),
    _values("reduce_scatter", "reduce_scatter leaves on rank r the reduction of inputs[r]."),
    _check(
        "reduce_scatter_inputs", "reduce_scatter leaves its inputs as they are.", partial(inputs_kept, "reduce_scatter")
    ),
    _values("all_to_all", "all_to_all puts inputs[r] of rank s into outputs[s] of rank r."),
    _values("gather", "gather puts every rank's tensor on the root; lengths may differ."),
    _values("scatter", "scatter puts inputs[r] of the root on rank r; lengths may differ."),
    _values("scan", "scan leaves on rank r the reduction over ranks 0 to r."),
    _check("barrier", "barrier completes on no rank before every rank has called it.", barrier),
    _check("in_flight", "Operations in flight may be waited for in any order.", in_order),
)
