"""The ring: every rank's block travels around once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcomms.algorithms.messages import Group, recv, send

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule


def circulate(group: Group, blocks: Sequence[Tensor]) -> Schedule:
    """All-gather in place: `blocks[r]` (flat) holds rank r's data on rank r before, on every rank afterwards.

    Lengths may differ by block. All receives are posted at the start, so that a fast neighbour never waits for memory.
    """
    size, rank = group.size, group.rank
    left, right = (rank - 1) % size, (rank + 1) % size
    arrivals = [group.post([recv(blocks[(left - step) % size], left)]) for step in range(size - 1)]
    departures = []
    for step in range(size - 1):
        departures.append(group.post([send(blocks[(rank - step) % size], right)]))
        yield arrivals[step]
    yield from departures
