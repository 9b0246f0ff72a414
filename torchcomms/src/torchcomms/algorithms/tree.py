"""Broadcast: a binomial tree for short tensors; scatter and ring all-gather for long ones.

The long form is van de Geijn's: each rank sends and receives about twice the tensor however many ranks there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchcomms.algorithms.messages import Group, check_root, chunks, flat, recv, send
from torchcomms.algorithms.ring import circulate

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule

LONG = 256 << 10  # bytes from which bandwidth counts more than the number of rounds


def broadcast(group: Group, tensor: Tensor, root: int) -> Schedule:
    """Copy `tensor` of `root` into every rank's."""
    check_root(group, root)
    data = flat(tensor)
    if group.size > 2 and data.nbytes >= LONG:
        return _scatter_and_gather(group, data, root)
    return _binomial(group, data, root)


def _binomial(group: Group, data: Tensor, root: int) -> Schedule:
    size, place = group.size, (group.rank - root) % group.size
    reach = 1
    while reach < size:
        if place < reach and place + reach < size:
            yield group.post([send(data, (place + reach + root) % size)])
        elif reach <= place < 2 * reach:
            yield group.post([recv(data, (place - reach + root) % size)])
        reach *= 2


def _scatter_and_gather(group: Group, data: Tensor, root: int) -> Schedule:
    parts = chunks(data, group.size)
    if group.rank == root:
        yield group.post([send(parts[peer], peer) for peer in range(group.size) if peer != root])
    else:
        yield group.post([recv(parts[group.rank], root)])
    yield from circulate(group, parts)
