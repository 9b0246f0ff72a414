"""The barrier by dissemination (Hensgen, Finkel and Manber 1988): in round k each rank tells the one 2^k further on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from torchcomms.algorithms.messages import Group, recv, send

if TYPE_CHECKING:
    from torchcomms.algorithms.schedule import Schedule


def barrier(group: Group) -> Schedule:
    """Complete nowhere before every rank has started it, in ceil(log2 size) rounds of empty messages."""
    nothing, reach = torch.empty(0, dtype=torch.uint8), 1
    while reach < group.size:
        onward, back = (group.rank + reach) % group.size, (group.rank - reach) % group.size
        yield group.post([recv(nothing, back), send(nothing, onward)])
        reach *= 2
