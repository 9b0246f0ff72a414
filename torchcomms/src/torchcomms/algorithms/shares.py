"""Every rank reduces a share: all parts of an element meet at one owner, who folds them in the order of ranks.

So the result depends on nothing but the ranks: not on the number of owners, the cut or the timing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchcomms.algorithms.exchange import pairwise, peers
from torchcomms.algorithms.messages import Even, Group, copy, recv, send
from torchcomms.algorithms.reduction import fold
from torchcomms.algorithms.ring import Shares
from torchcomms.algorithms.scratch import workspace

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import ReduceOp, Ticket


def exchange(group: Group, data: Tensor, op: ReduceOp) -> Schedule:
    """All_reduce in one round: everyone sends everything to everyone and folds it in the order of ranks."""
    parts, _ = slots(group, data)
    yield from pairwise(group, parts.__getitem__, lambda _: data)
    fold(op, parts, data)


def all_reduce(group: Group, data: Tensor, op: ReduceOp) -> Schedule:
    """All_reduce in two rounds: parts to the owners of shares, results from them. In the order of ranks."""
    size, rank, count = group.size, group.rank, data.numel()
    shares = Shares(data, Even(count, size), size)
    mine = shares[rank]
    parts, result = slots(group, mine, count)
    results = Shares(result, shares.bounds, size)
    coming: list[Ticket] = []

    def expect() -> None:
        # A peer may send its result before we have all parts: it shall find its place.
        coming.append(group.post([recv(results[peer], peer) for peer in peers(group)]))

    yield from pairwise(group, parts.__getitem__, shares.__getitem__, expect)
    own = results[rank]
    fold(op, parts, own)
    yield from pairwise(group, None, lambda _: own)
    yield from coming
    copy(data, result)


def collect(group: Group, data: Tensor, root: int, op: ReduceOp) -> Schedule:
    """Reduce in one round: the root folds everyone's whole tensor in the order of ranks."""
    if group.rank != root:
        yield group.post([send(data, root)])
        return
    parts, _ = slots(group, data)
    yield group.post([recv(parts[peer], peer) for peer in peers(group)])
    fold(op, parts, data)


def reduce(group: Group, data: Tensor, root: int, op: ReduceOp) -> Schedule:
    """Reduce in two rounds: parts to the owners of shares, results from them to the root. In the order of ranks."""
    size, rank, count = group.size, group.rank, data.numel()
    shares = Shares(data, Even(count, size), size)
    mine = shares[rank]
    parts, result = slots(group, mine, count if rank == root else mine.numel())
    yield from pairwise(group, parts.__getitem__, shares.__getitem__)
    if rank != root:
        fold(op, parts, result)
        yield group.post([send(result, root)])
        return
    results = Shares(result, shares.bounds, size)
    coming = group.post([recv(results[peer], peer) for peer in peers(group)])
    fold(op, parts, results[root])
    yield coming
    copy(data, result)


def slots(group: Group, mine: Tensor, staged: int = 0) -> tuple[list[Tensor], Tensor]:
    """One tensor for each rank's part: the group's scratch memory for the others', `mine` for this rank's.

    And memory for `staged` elements of the result.
    """
    count = mine.numel()
    memory, result = workspace(group, mine, ((group.size - 1) * count, mine.dtype), (staged, mine.dtype))
    others = [memory[low * count : (low + 1) * count] for low in range(group.size - 1)]
    return [*others[: group.rank], mine, *others[group.rank :]], result
