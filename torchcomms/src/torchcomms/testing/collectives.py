"""Checks of the derived operations: values against plain torch, uneven and empty sizes, inputs kept, same bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchcomms.backend import Backend, ReduceOp
from torchcomms.testing.core import claims_cpu
from torchcomms.testing.report import Check, expect
from torchcomms.testing.world import World, results

RANKS = 3
SIZES = (0, 1, 7, 4099, 100_003)  # elements: empty, fewer than ranks, short, cut unevenly, long
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8)
OPS = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)


def data(rank: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Small values, different for each rank; sums of a few are exact in every dtype."""
    return ((torch.arange(count) * (rank + 2)) % 5 + rank).to(dtype)


def reduced(parts: list[Tensor], op: ReduceOp) -> Tensor:
    """What a reduction means, in plain torch: exact arithmetic on small values, rounded once."""
    whole = torch.stack([part.to(torch.float64) for part in parts])
    if op.kind in ("sum", "avg"):
        total = whole.sum(0) / (len(parts) if op.kind == "avg" else 1)
    else:
        total = whole.prod(0) if op.kind == "product" else getattr(whole, f"a{op.kind}")(0)
    dtype = parts[0].dtype
    return (total if dtype.is_floating_point else total.trunc()).to(dtype)


def same(seen: Tensor, wanted: Tensor, what: str) -> None:
    """Equal bits, except that a quotient in float may differ in its last place."""
    tolerance = 2 * torch.finfo(wanted.dtype).eps if wanted.dtype.is_floating_point else 0.0
    close = seen.shape == wanted.shape and torch.allclose(seen.double(), wanted.double(), rtol=tolerance, atol=0.0)
    expect(close, f"{what}: {seen.flatten()[:4].tolist()}... is not {wanted.flatten()[:4].tolist()}...")


def broadcast(world: World) -> None:
    for count in SIZES:
        for root in range(RANKS):

            def move(backend: Backend, count: int = count, root: int = root) -> Tensor:
                tensor = data(backend.rank, count)
                backend.broadcast(tensor, root).wait()
                return tensor

            for rank, seen in enumerate(results(world, move)):
                same(seen, data(root, count), f"broadcast of {count} from {root} on rank {rank}")


def _cases() -> list[tuple[int, torch.dtype, ReduceOp]]:
    every = [(count, torch.float32, ReduceOp.SUM) for count in SIZES]
    return every + [(4099, dtype, op) for dtype in DTYPES for op in OPS]


def all_reduce(world: World) -> None:
    for count, dtype, op in _cases():

        def apply(backend: Backend, count: int = count, dtype: torch.dtype = dtype, op: ReduceOp = op) -> Tensor:
            tensor = data(backend.rank, count, dtype)
            backend.all_reduce(tensor, op).wait()
            return tensor

        wanted = reduced([data(rank, count, dtype) for rank in range(RANKS)], op)
        for rank, seen in enumerate(results(world, apply)):
            same(seen, wanted, f"all_reduce {op.kind} of {count} {dtype} on rank {rank}")


def same_bits(world: World) -> None:
    def noisy(backend: Backend) -> list[bytes]:
        seen = []
        for dtype in (torch.float32, torch.bfloat16):
            for count in (1000, 50_000):
                generator = torch.Generator().manual_seed(backend.rank)
                start = torch.randn(count, generator=generator).to(dtype)
                for _ in range(2):
                    tensor = start.clone()
                    backend.all_reduce(tensor, ReduceOp.SUM).wait()
                    seen.append(tensor.view(torch.uint8).numpy().tobytes())
        return seen

    found = results(world, noisy)
    expect(all(one == found[0] for one in found), "ranks hold different bits after one all_reduce")
    expect(
        all(first == second for first, second in zip(found[0][::2], found[0][1::2], strict=True)), "a repeat differs"
    )


def reduce(world: World) -> None:
    for count, dtype, op in _cases():

        def apply(backend: Backend, count: int = count, dtype: torch.dtype = dtype, op: ReduceOp = op) -> Tensor:
            tensor = data(backend.rank, count, dtype)
            backend.reduce(tensor, 1, op).wait()
            return tensor

        wanted = reduced([data(rank, count, dtype) for rank in range(RANKS)], op)
        same(results(world, apply)[1], wanted, f"reduce {op.kind} of {count} {dtype} at the root")


def reduce_keeps_inputs(world: World) -> None:
    def apply(backend: Backend) -> Tensor:
        tensor = data(backend.rank, 50_000)
        backend.reduce(tensor, 0, ReduceOp.SUM).wait()
        return tensor

    for rank, seen in enumerate(results(world, apply)):
        expect(rank == 0 or torch.equal(seen, data(rank, 50_000)), f"reduce changed the tensor of rank {rank}")


def uneven(rank: int, scale: int) -> int:
    """A length for each rank: none, some, twice that."""
    return rank * scale


def all_gather(world: World) -> None:
    for scale in (0, 1, 40_000):

        def move(backend: Backend, scale: int = scale) -> list[Tensor]:
            outputs = [torch.empty(uneven(rank, scale)) for rank in range(RANKS)]
            backend.all_gather(outputs, data(backend.rank, uneven(backend.rank, scale))).wait()
            return outputs

        for outputs in results(world, move):
            for rank, seen in enumerate(outputs):
                same(seen, data(rank, uneven(rank, scale)), f"all_gather of uneven lengths, part of rank {rank}")


def _scattered(backend: Backend, scale: int) -> tuple[Tensor, list[Tensor]]:
    inputs = [data(backend.rank + target, uneven(target, scale)) for target in range(RANKS)]
    output = torch.empty(uneven(backend.rank, scale))
    backend.reduce_scatter(output, inputs, ReduceOp.SUM).wait()
    return output, inputs


def reduce_scatter(world: World) -> None:
    for scale in (0, 1, 40_000):
        for target, (seen, _) in enumerate(results(world, lambda backend, scale=scale: _scattered(backend, scale))):  # type: ignore[misc]
            parts = [data(rank + target, uneven(target, scale)) for rank in range(RANKS)]
            same(seen, reduced(parts, ReduceOp.SUM), f"reduce_scatter of uneven lengths on rank {target}")


def reduce_scatter_keeps_inputs(world: World) -> None:
    for rank, (_, inputs) in enumerate(results(world, lambda backend: _scattered(backend, 20_000))):
        kept = [torch.equal(seen, data(rank + target, seen.numel())) for target, seen in enumerate(inputs)]
        expect(all(kept), f"reduce_scatter changed the inputs of rank {rank}")


def all_to_all(world: World) -> None:
    for scale in (0, 1, 20_000):

        def move(backend: Backend, scale: int = scale) -> list[Tensor]:
            inputs = [data(backend.rank, (backend.rank + peer) * scale) for peer in range(RANKS)]
            outputs = [torch.empty((backend.rank + peer) * scale) for peer in range(RANKS)]
            backend.all_to_all(outputs, inputs).wait()
            return outputs

        for rank, outputs in enumerate(results(world, move)):
            for peer, seen in enumerate(outputs):
                same(seen, data(peer, (rank + peer) * scale), f"all_to_all on rank {rank}, part of rank {peer}")


def gather(world: World) -> None:
    def move(backend: Backend) -> list[Tensor]:
        outputs = [torch.empty(uneven(rank, 1000)) for rank in range(RANKS)]
        mine = data(backend.rank, uneven(backend.rank, 1000))
        backend.gather(outputs if backend.rank == 1 else None, mine, 1).wait()
        return outputs

    for rank, seen in enumerate(results(world, move)[1]):
        same(seen, data(rank, uneven(rank, 1000)), f"gather of uneven lengths, part of rank {rank}")


def scatter(world: World) -> None:
    def move(backend: Backend) -> Tensor:
        output = torch.empty(uneven(backend.rank, 1000))
        inputs = [data(rank, uneven(rank, 1000)) for rank in range(RANKS)]
        backend.scatter(output, inputs if backend.rank == 2 else None, 2).wait()
        return output

    for rank, seen in enumerate(results(world, move)):
        same(seen, data(rank, uneven(rank, 1000)), f"scatter of uneven lengths on rank {rank}")


def scan(world: World) -> None:
    def apply(backend: Backend) -> Tensor:
        tensor = data(backend.rank, 1000)
        backend.scan(tensor, ReduceOp.SUM).wait()
        return tensor

    for rank, seen in enumerate(results(world, apply)):
        same(seen, reduced([data(one, 1000) for one in range(rank + 1)], ReduceOp.SUM), f"scan on rank {rank}")


def barrier(world: World) -> None:
    arrived: list[int] = []

    def meet(backend: Backend) -> int:
        for _ in range(20):
            arrived.append(backend.rank)
            backend.barrier().wait()
            seen = len(arrived)
            backend.barrier().wait()
            if seen < RANKS or seen % RANKS:
                return seen
        return 0

    early = [seen for seen in results(world, meet) if seen]
    expect(not early, f"a rank left a barrier of {RANKS} when {early} arrivals had been counted")


def in_order(world: World) -> None:
    def overlap(backend: Backend) -> float:
        first, second = torch.ones(50_000), torch.full((3,), 2.0)
        tickets = [backend.all_reduce(first, ReduceOp.SUM), backend.all_reduce(second, ReduceOp.SUM)]
        for ticket in tickets if backend.rank else reversed(tickets):
            ticket.wait()
        return float(first.mean() + second.mean())

    expect(results(world, overlap) == [9.0] * RANKS, "two operations in flight, waited for in any order, go wrong")


def _check(name: str, clause: str, function: Callable[[World], None]) -> Check:
    return Check(f"derived.{name}", clause, function, RANKS, claims_cpu)


CHECKS = (
    _check("broadcast", "broadcast copies the root's tensor to every rank.", broadcast),
    _check("all_reduce", "all_reduce leaves the reduction over all ranks on every rank.", all_reduce),
    _check("same_bits", "Results are the same bits on every rank and every time.", same_bits),
    _check("reduce", "reduce leaves the reduction on the root.", reduce),
    _check("reduce_inputs", "reduce leaves the tensors of the other ranks as they are.", reduce_keeps_inputs),
    _check("all_gather", "all_gather puts every rank's tensor on every rank; lengths may differ.", all_gather),
    _check("reduce_scatter", "reduce_scatter leaves on rank r the reduction of inputs[r].", reduce_scatter),
    _check("reduce_scatter_inputs", "reduce_scatter leaves its inputs as they are.", reduce_scatter_keeps_inputs),
    _check("all_to_all", "all_to_all puts inputs[r] of rank s into outputs[s] of rank r.", all_to_all),
    _check("gather", "gather puts every rank's tensor on the root; lengths may differ.", gather),
    _check("scatter", "scatter puts inputs[r] of the root on rank r; lengths may differ.", scatter),
    _check("scan", "scan leaves on rank r the reduction over ranks 0 to r.", scan),
    _check("barrier", "barrier completes on no rank before every rank has called it.", barrier),
    _check("in_flight", "Operations in flight may be waited for in any order.", in_order),
)
