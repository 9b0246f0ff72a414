"""Checks of communicators on tensors of any layout: right values, and only a tensor's own elements written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcomms.backend import ReduceOp
from torchcomms.errors import InvalidCall, UnsupportedReduction, UnsupportedTensor
from torchcomms.testing.messages import claimed_dtypes
from torchcomms.testing.operations import OPERATIONS, REDUCING, Case, Local, finish, first_wrong
from torchcomms.testing.report import Check, expect
from torchcomms.testing.samples import all_dtypes, reductions
from torchcomms.testing.world import World, results

if TYPE_CHECKING:
    from torchcomms.comm import TorchComm

RANKS = 3
COUNT = 12  # elements; lengths that differ are multiples of it, so that every layout has a form for them
LONG = 9000  # elements of float32 beyond the length up to which collectives run on private copies
FRAME = 77  # in the elements around a tensor's own

# For a number of elements: the shape of the whole, and what takes the tensor's own elements out of it.
Layout = Callable[[int], tuple[tuple[int, ...], Callable[[Tensor], Tensor]]]


def strided(count: int) -> tuple[tuple[int, ...], Callable[[Tensor], Tensor]]:
    """Every second element of a line."""
    return (2 * count,), lambda whole: whole[::2]


def column(count: int) -> tuple[tuple[int, ...], Callable[[Tensor], Tensor]]:
    """The middle one of three columns."""
    return (count, 3), lambda whole: whole[:, 1]


def transposed(count: int) -> tuple[tuple[int, ...], Callable[[Tensor], Tensor]]:
    """A matrix transposed, with a border."""
    return (5, count // 3), lambda whole: whole[1:4].t()


def sliced(count: int) -> tuple[tuple[int, ...], Callable[[Tensor], Tensor]]:
    """A piece out of the middle of a line."""
    return (count + 8,), lambda whole: whole[5 : count + 5]


LAYOUTS = (strided, column, transposed, sliced)


class Laid(Local):
    """One rank's part in one case, on tensors of a layout within a frame of other elements."""

    def __init__(self, comm: TorchComm, case: Case, layout: Layout) -> None:
        super().__init__(comm, case, comm.get_rank(), comm.get_size(), comm.get_device())
        self.layout = layout
        self.frames: list[tuple[Tensor, Tensor]] = []

    def here(self, rank: int, count: int) -> Tensor:
        view = self._framed(count)
        view.copy_(self.part(rank, count).view(view.shape))
        return view

    def blank(self, count: int) -> Tensor:
        view = self._framed(count)
        view.zero_()
        return view

    def _framed(self, count: int) -> Tensor:
        shape, take = self.layout(count)
        whole = torch.full(shape, FRAME, dtype=torch.float32).to(self.dtype).to(self.device)
        inside = torch.zeros(shape, dtype=torch.bool, device=self.device)
        take(inside).fill_(True)
        self.frames.append((whole, ~inside))
        return take(whole)

    def spilled(self) -> bool:
        """Whether something outside of a tensor's own elements was written."""
        frame = torch.tensor(float(FRAME)).to(self.dtype).double()
        return any(not bool((whole.cpu().double()[outside.cpu()] == frame).all()) for whole, outside in self.frames)


def cases_of(dtypes: Sequence[str], counts: Sequence[int]) -> list[Case]:
    """Every operation at every count, the dtypes in turn."""
    pairs = [(operation, count) for operation in OPERATIONS for count in counts]
    return [Case(one, count, dtypes[index % len(dtypes)], root=1) for index, (one, count) in enumerate(pairs)]


def laid_out(layout: Layout, comm: TorchComm) -> tuple[str, str]:
    """Every operation on tensors of the layout; what was wrong, and what wrote beside its elements."""
    wrong = spilled = ""
    for case in cases_of(("float32", "bfloat16", "int64", "uint8"), (0, COUNT, LONG)):
        local = Laid(comm, case, layout)
        seen = OPERATIONS[case.operation](local)
        flat = [type(one)(one.what, one.tensor.flatten(), one.wanted, one.kept) for one in seen]
        found = first_wrong(flat, case, False) or first_wrong(flat, case, True)
        wrong = wrong or (f"{case} on {layout.__name__} tensors: {found}" if found else "")
        spilled = spilled or (f"{case} on {layout.__name__} tensors" if local.spilled() else "")
    return wrong, spilled


def values(layout: Layout, world: World[TorchComm]) -> None:
    for rank, (wrong, _) in enumerate(results(world, partial(laid_out, layout))):
        expect(not wrong, f"rank {rank}: {wrong}")


def own_elements(world: World[TorchComm]) -> None:
    for rank, (_, spilled) in enumerate(results(world, partial(laid_out, column))):
        expect(not spilled, f"rank {rank}: {spilled} wrote beside a tensor's elements")


def lazy_views(world: World[TorchComm]) -> None:
    for rank, seen in enumerate(results(world, _reduce_views)):
        expect(seen == ([6 - 9j] * 4, [-6.0] * 4, [6 + 9j] * 4), f"conj, neg, and what is under conj: {seen} on {rank}")


def _reduce_views(comm: TorchComm) -> tuple[list[complex], list[float], list[complex]]:
    rank = comm.get_rank()
    under = torch.full((4,), complex(rank + 1, 3), dtype=torch.complex64, device=comm.get_device())
    comm.all_reduce(under.conj(), ReduceOp.SUM)
    imaginary = torch.full((4,), complex(0, rank + 1), dtype=torch.complex64, device=comm.get_device())
    negative = imaginary.conj().imag  # a view with the negative bit
    comm.all_reduce(negative, ReduceOp.SUM)
    return under.conj().resolve_conj().tolist(), negative.resolve_neg().tolist(), under.tolist()


def expanded(world: World[TorchComm]) -> None:
    for rank, wrong in enumerate(results(world, _expand)):
        expect(not wrong, f"rank {rank}: {wrong}")


def _expand(comm: TorchComm) -> str:
    device, size = comm.get_device(), comm.get_size()
    outputs = [torch.zeros(6, device=device) for _ in range(size)]
    comm.all_gather(outputs, torch.full((1,), float(comm.get_rank()), device=device).expand(6))
    if [float(output.mean()) for output in outputs] != [float(rank) for rank in range(size)]:
        return "an expanded input arrives changed"
    try:
        comm.all_reduce(torch.ones(1, device=device).expand(6), ReduceOp.SUM)
    except InvalidCall:
        return ""
    return "an expanded tensor as the target of a result is no InvalidCall"


def every_dtype(world: World[TorchComm]) -> None:
    for rank, wrong in enumerate(results(world, _move_and_reduce)):
        expect(not wrong, f"rank {rank}: {wrong}")


def _move_and_reduce(comm: TorchComm) -> str:
    for case in _each_dtype(claimed_dtypes(comm.get_backend_impl())):
        local = Local(comm, case, comm.get_rank(), comm.get_size(), comm.get_device())
        try:
            wrong = first_wrong(OPERATIONS[case.operation](local), case, False)
        except (InvalidCall, UnsupportedReduction, UnsupportedTensor) as error:
            wrong = f"refused: {error}"
        if wrong:
            return f"{case}: {wrong}"
    return ""


def _each_dtype(dtypes: Sequence[str]) -> Iterator[Case]:
    """Every operation on every dtype, its reductions in turn."""
    for number, (dtype, operation) in enumerate(product(dtypes, OPERATIONS)):
        ops = reductions(all_dtypes()[dtype]) if operation in REDUCING else (ReduceOp.SUM,)
        able = [op for op in ops if (operation, op.kind) != ("scan", "avg")]
        if able:
            yield Case(operation, 5, dtype, able[number % len(able)], 1)


def empty_and_uneven(world: World[TorchComm]) -> None:
    for rank, wrong in enumerate(results(world, _empty_and_uneven)):
        expect(not wrong, f"rank {rank}: {wrong}")


def _empty_and_uneven(comm: TorchComm) -> str:
    for case in (Case(operation, count) for operation in OPERATIONS for count in (0, 3)):
        local = Local(comm, case, comm.get_rank(), comm.get_size(), comm.get_device())
        wrong = first_wrong(OPERATIONS[case.operation](local), case, False)
        if wrong:
            return f"{case}: {wrong}"
    shaped = [torch.zeros(1, 0, 2, device=comm.get_device()) for _ in range(comm.get_size())]
    finish(comm.all_gather(shaped, torch.zeros(1, 0, 2, device=comm.get_device())))
    return "" if all(one.shape == (1, 0, 2) for one in shaped) else "an empty tensor has lost its shape"


def _check(name: str, clause: str, function: Callable[[World[TorchComm]], None]) -> Check:
    return Check(f"comm.{name}", clause, function, RANKS)


CHECKS: Sequence[Check] = (
    *(
        _check(
            layout.__name__, f"Every operation is right on tensors that are {layout.__name__}.", partial(values, layout)
        )
        for layout in LAYOUTS
    ),
    _check("own_elements", "Only a tensor's own elements are written.", own_elements),
    _check("lazy_views", "Conjugate and negative views hold what is seen through them.", lazy_views),
    _check("expanded", "Expanded tensors may be sent, and are refused where a result is written.", expanded),
    _check("dtypes", "Every operation is right on every dtype.", every_dtype),
    _check("lengths", "Empty tensors keep their shapes, and lengths may differ by rank.", empty_and_uneven),
)
