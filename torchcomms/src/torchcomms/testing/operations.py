"""Every derived operation, run on one rank and compared there with what it means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from torchcomms.backend import Backend, ReduceOp
from torchcomms.errors import InvalidCall, UnsupportedReduction, UnsupportedTensor
from torchcomms.testing.report import expect
from torchcomms.testing.samples import agree, all_dtypes, moved, numbers, reduced, same_bytes
from torchcomms.testing.world import World, results


class Waiting(Protocol):
    """A ticket of a backend, or a work of a communicator."""

    def wait(self) -> None:
        """Block until complete, or order the device's stream after it."""


@dataclass(frozen=True, slots=True)
class Case:
    """One operation, of `count` elements; where lengths differ by rank, of a multiple that depends on the rank."""

    operation: str
    count: int
    dtype: str = "float32"
    op: ReduceOp = ReduceOp.SUM
    root: int = 0

    def __str__(self) -> str:
        how = f" {self.op.kind}" if self.operation in REDUCING else ""
        root = f" with root {self.root}" if self.operation in ROOTED else ""
        return f"{self.operation}{how} of {self.count} {self.dtype}{root}"


@dataclass(frozen=True, slots=True)
class Seen:
    """A tensor of this rank after an operation beside what it should hold; `kept` if it was an input."""

    what: str
    tensor: Tensor
    wanted: Tensor
    kept: bool = False

    def wrong(self, same: Callable[[Tensor, Tensor], bool]) -> str:
        """The difference in words, or ""."""
        if same(self.tensor, self.wanted):
            return ""
        bad = (self.tensor.view(torch.uint8) != self.wanted.view(torch.uint8)).nonzero().flatten()
        place = int(bad[0]) // self.tensor.element_size()
        return f"{self.what} holds {_element(self.tensor, place)}, not {_element(self.wanted, place)}, at {place}"


def _element(tensor: Tensor, place: int) -> str:
    try:
        return str(tensor[place].item())
    except (RuntimeError, TypeError):  # a dtype that torch can only move
        return str(tensor.view(torch.uint8).view(tensor.numel(), -1)[place].tolist())


class Local:
    """One rank's part in one case. `backend` may also be a communicator, which has the same operations."""

    def __init__(self, backend: Any, case: Case, rank: int, size: int, device: Any) -> None:
        self.backend, self.case, self.rank, self.device = backend, case, rank, device
        self.everyone = range(size)
        self.dtype = all_dtypes()[case.dtype]
        self.make = numbers if case.operation in REDUCING else moved

    def part(self, rank: int, count: int) -> Tensor:
        """What `rank` contributes."""
        return self.make(rank, count, self.dtype)

    def here(self, rank: int, count: int) -> Tensor:
        """The same, on the backend's device."""
        there: Tensor = self.part(rank, count).to(self.device)
        return there

    def blank(self, count: int) -> Tensor:
        """Memory for a result."""
        nothing: Tensor = torch.zeros(count * self.dtype.itemsize, dtype=torch.uint8, device=self.device)
        return nothing.view(self.dtype)

    def total(self, ranks: Iterable[int], count: int, shift: int = 0) -> Tensor:
        """The reduction of what `ranks` contribute."""
        return _total(tuple(rank + shift for rank in ranks), count, self.dtype, self.case.op)

    def inputs(self, scale: int) -> list[Tensor]:
        """A list with a tensor of another length for each rank."""
        return [self.here(self.rank + target, target * scale) for target in self.everyone]


@lru_cache(maxsize=64)
def _total(ranks: tuple[int, ...], count: int, dtype: torch.dtype, op: ReduceOp) -> Tensor:
    return reduced([numbers(rank, count, dtype) for rank in ranks], op)


def broadcast(local: Local) -> list[Seen]:
    case = local.case
    tensor = local.here(local.rank, case.count)
    finish(local.backend.broadcast(tensor, case.root))
    return [Seen("the tensor", tensor, local.part(case.root, case.count))]


def all_reduce(local: Local) -> list[Seen]:
    tensor = local.here(local.rank, local.case.count)
    finish(local.backend.all_reduce(tensor, local.case.op))
    return [Seen("the result", tensor, local.total(local.everyone, local.case.count))]


def reduce(local: Local) -> list[Seen]:
    case = local.case
    tensor = local.here(local.rank, case.count)
    finish(local.backend.reduce(tensor, case.root, case.op))
    if local.rank == case.root:
        return [Seen("the result at the root", tensor, local.total(local.everyone, case.count))]
    return [Seen("the input", tensor, local.part(local.rank, case.count), kept=True)]


def scan(local: Local) -> list[Seen]:
    tensor = local.here(local.rank, local.case.count)
    finish(local.backend.scan(tensor, local.case.op))
    return [Seen("the result", tensor, local.total(range(local.rank + 1), local.case.count))]


def all_gather(local: Local) -> list[Seen]:
    lengths = [rank * local.case.count for rank in local.everyone]
    outputs, mine = [local.blank(length) for length in lengths], local.here(local.rank, lengths[local.rank])
    finish(local.backend.all_gather(outputs, mine))
    return [Seen(f"the part of rank {rank}", outputs[rank], local.part(rank, lengths[rank])) for rank in local.everyone]


def reduce_scatter(local: Local) -> list[Seen]:
    scale, rank = local.case.count, local.rank
    output, inputs = local.blank(rank * scale), local.inputs(scale)
    finish(local.backend.reduce_scatter(output, inputs, local.case.op))
    seen = [Seen("the result", output, local.total(local.everyone, rank * scale, shift=rank))]
    wanted = [local.part(rank + target, target * scale) for target in local.everyone]
    return seen + [Seen(f"input {target}", inputs[target], wanted[target], kept=True) for target in local.everyone]


def all_to_all(local: Local) -> list[Seen]:
    lengths = [(local.rank + peer) * local.case.count for peer in local.everyone]
    inputs = [local.here(local.rank + 5 * peer, lengths[peer]) for peer in local.everyone]
    outputs = [local.blank(length) for length in lengths]
    finish(local.backend.all_to_all(outputs, inputs))
    wanted = [local.part(peer + 5 * local.rank, lengths[peer]) for peer in local.everyone]
    return [Seen(f"the part of rank {peer}", outputs[peer], wanted[peer]) for peer in local.everyone]


def gather(local: Local) -> list[Seen]:
    case = local.case
    outputs = [local.blank(rank * case.count) for rank in local.everyone] if local.rank == case.root else None
    finish(local.backend.gather(outputs, local.here(local.rank, local.rank * case.count), case.root))
    parts = enumerate(outputs or [])
    return [Seen(f"the part of rank {rank}", output, local.part(rank, output.numel())) for rank, output in parts]


def scatter(local: Local) -> list[Seen]:
    case, length = local.case, local.rank * local.case.count
    inputs = [local.here(rank, rank * case.count) for rank in local.everyone] if local.rank == case.root else None
    output = local.blank(length)
    finish(local.backend.scatter(output, inputs, case.root))
    return [Seen("the result", output, local.part(local.rank, length))]


def finish(ticket: Waiting) -> None:
    """Wait for it."""
    ticket.wait()


OPERATIONS: dict[str, Callable[[Local], list[Seen]]] = {
    one.__name__: one
    for one in (broadcast, all_reduce, reduce, scan, all_gather, reduce_scatter, all_to_all, gather, scatter)
}
REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter", "scan"})
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})


def perform(cases: Sequence[Case], backend: Backend, *, kept: bool = False) -> list[str]:
    """Run the cases on this rank; what was wrong with each, in its results or in its inputs, or ""."""
    return [_perform(case, backend, kept) for case in cases]


def _perform(case: Case, backend: Backend, kept: bool) -> str:
    local = Local(backend, case, backend.rank, backend.size, backend.device)
    try:
        return first_wrong(OPERATIONS[case.operation](local), case, kept)
    except (InvalidCall, UnsupportedReduction, UnsupportedTensor) as error:
        return f"refused: {error}"  # before anything was sent, so that the cases after it can still be run


def first_wrong(seen: Sequence[Seen], case: Case, kept: bool) -> str:
    """What is wrong with the results, or with the inputs, of a case, or ""."""
    same = agree if case.operation in REDUCING and not kept else same_bytes
    on_cpu = [Seen(one.what, one.tensor.detach().cpu().contiguous(), one.wanted) for one in seen if one.kept == kept]
    return next(filter(None, (one.wrong(same) for one in on_cpu)), "")


def check_cases(world: World[Backend], cases: Sequence[Case], *, kept: bool = False) -> None:
    """Run the cases on all ranks and raise for the first that is wrong on any."""
    for rank, wrongs in enumerate(results(world, partial(perform, cases, kept=kept))):
        for case, wrong in zip(cases, wrongs, strict=True):
            expect(not wrong, f"{case}: on rank {rank} {wrong}")
