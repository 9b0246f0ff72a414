"""Pairwise exchange: a message to and from every other rank, in rotated order so that nobody is everyone's first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from torchcomms.algorithms.messages import Group, recv, send

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import Ticket

WINDOW = (
    32  # peers in one batch; two batches are under way at a time, so that thousands of ranks do not flood a network
)


def peers(group: Group) -> list[int]:
    """The other ranks, beginning after this one."""
    return [(group.rank + step) % group.size for step in range(1, group.size)]


def pairwise(
    group: Group,
    incoming: Callable[[int], Tensor] | None,
    outgoing: Callable[[int], Tensor],
    posted: Callable[[], None] = lambda: None,
) -> Schedule:
    """Send `outgoing(peer)` to and receive `incoming(peer)` from every other rank; None if the receives are posted.

    A group of up to 33 ranks exchanges in one batch, so its messages are out when the schedule first yields. `posted`
    is called when all are out; from then on receives of a next exchange may be posted.
    """
    rank, size = group.rank, group.size
    under_way: deque[Ticket] = deque()
    for low in range(1, size, WINDOW):
        steps = range(low, min(low + WINDOW, size))
        arriving = [recv(incoming((rank - step) % size), (rank - step) % size) for step in steps] if incoming else []
        leaving = [send(outgoing((rank + step) % size), (rank + step) % size) for step in steps]
        under_way.append(group.post(arriving + leaving))
        if len(under_way) > 1:
            yield under_way.popleft()
    posted()
    yield from under_way
