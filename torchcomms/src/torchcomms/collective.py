"""One checked collective: agree on the call, run it on dense buffers, write the results back.

The fingerprint and the first data go out together, so that the check costs no round trip. Short tensors run on private
copies and so stay as they were if the ranks do not agree; long ones run in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcomms import fingerprint, layout
from torchcomms.backend import P2P, Backend
from torchcomms.fingerprint import Call

if TYPE_CHECKING:
    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import Ticket

TAG = -2
SHORT = 32 << 10  # bytes of all tensors together up to which a collective runs on private copies


@dataclass(frozen=True, slots=True)
class Plan:
    """A collective ready to run: `call` of its sequence number is what the ranks must
    agree on, `begin` starts it on dense buffers, `results` go to `targets` when it is through."""

    call: Callable[[int], Call]
    begin: Callable[[], Ticket | None]
    targets: Sequence[Tensor]
    results: Sequence[Tensor]


def is_short(tensors: Sequence[Tensor]) -> bool:
    """Whether a collective over these tensors runs on private copies."""
    return sum(tensor.nbytes for tensor in tensors) <= SHORT


def in_place(tensor: Tensor, short: bool) -> Tensor:
    """The buffer of a tensor that is read and written."""
    return layout.private(tensor) if short else layout.dense(tensor)


def to_fill(tensor: Tensor, short: bool) -> Tensor:
    """The buffer of a tensor that is only written."""
    return torch.empty_like(tensor, memory_format=torch.contiguous_format) if short else layout.blank(tensor)


def run(backend: Backend, plan: Plan, call: Call) -> Schedule:
    """The schedule of a checked collective; raises `CollectiveMismatch` if the ranks do not agree."""
    with backend.coalesce():
        arrivals, exchange = _exchange(backend, call)
        started = plan.begin()
    yield exchange
    fingerprint.compare({rank: row.numpy().tobytes() for rank, row in enumerate(arrivals)})
    if started is not None:
        yield started
    layout.unpack(plan.targets, plan.results)


def _exchange(backend: Backend, call: Call) -> tuple[Sequence[Tensor], Ticket]:
    rows = torch.empty((backend.size, fingerprint.SIZE), dtype=torch.uint8).unbind(0)
    mine = rows[backend.rank]
    mine.numpy()[:] = memoryview(call.pack())
    others = [rank for rank in range(backend.size) if rank != backend.rank]
    batch = [P2P("recv", rows[rank], rank, TAG) for rank in others]
    return rows, backend.post(batch + [P2P("send", mine, rank, TAG) for rank in others])
