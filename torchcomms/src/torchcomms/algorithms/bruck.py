"""Bruck's all-gather (1997): in round k a rank passes all it has to the one 2^k before it; ceil(log2 size) rounds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from torchcomms.algorithms.messages import Group, copy, recv, send
from torchcomms.algorithms.scratch import workspace

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule


def all_gather(group: Group, blocks: Sequence[Tensor], data: Tensor) -> Schedule:
    """Fill `blocks[r]` (flat, of any lengths) with rank r's data. Blocks travel packed, beginning with one's own."""
    size, rank = group.size, group.rank
    mine = [blocks[(rank + step) % size] for step in range(size)]
    offsets = [0, *accumulate(block.numel() for block in mine)]
    (packed,) = workspace(group, data, (offsets[-1], data.dtype))
    copy(packed[: offsets[1]], data)
    held = 1
    while held < size:
        count = min(held, size - held)
        source, target = (rank + held) % size, (rank - held) % size
        incoming = packed[offsets[held] : offsets[held + count]]
        yield group.post([recv(incoming, source), send(packed[: offsets[count]], target)])
        held += count
    for step, block in enumerate(mine):
        copy(block, packed[offsets[step] : offsets[step + 1]])
