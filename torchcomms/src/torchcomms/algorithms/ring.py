"""The ring: blocks travel around once, to gather them or to reduce them on the way.

Every rank sends to one neighbour and receives from the other, each about the whole tensor, however many ranks there are
(Patarasuk and Yuan 2009). The price is size - 1 rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcomms.algorithms.messages import Bounds, Even, Group, copy, recv, send
from torchcomms.algorithms.partial import load, merge, partial_dtype, settle, stage
from torchcomms.algorithms.scratch import workspace

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import ReduceOp, Ticket

AHEAD = 16  # receives posted before their turn, so that a fast neighbour never waits for memory


class Shares(Sequence["Tensor"]):
    """The shares of one flat tensor as a sequence of views, cut when asked for."""

    def __init__(self, tensor: Tensor, bounds: Bounds, count: int) -> None:
        self._tensor, self.bounds, self._count = tensor, bounds, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        return self._tensor[self.bounds[index] : self.bounds[index + 1]]


def circulate(group: Group, blocks: Sequence[Tensor]) -> Schedule:
    """All-gather in place: `blocks[r]` (flat) holds rank r's data on rank r before, on every rank afterwards.

    Lengths may differ by block.
    """
    size, rank = group.size, group.rank
    left, right = (rank - 1) % size, (rank + 1) % size
    arrivals: deque[Ticket] = deque()
    departures: deque[Ticket] = deque()
    expected = 0
    for step in range(size - 1):
        while expected < min(step + AHEAD, size - 1):
            arrivals.append(group.post([recv(blocks[(left - expected) % size], left)]))
            expected += 1
        departures.append(group.post([send(blocks[(rank - step) % size], right)]))
        yield arrivals.popleft()
        if len(departures) > AHEAD:
            yield departures.popleft()
    yield from departures


def reduce_around(group: Group, shares: Sequence[Tensor], spare: Sequence[Tensor], op: ReduceOp) -> Schedule:
    """Reduce-scatter in place: afterwards `shares[rank]` is the reduction of that share over all ranks.

    Share c sets out from rank c + 1 and ends on rank c, so its parts are reduced in the order c + 1, c + 2, ..., c. The
    other shares are left as garbage. `spare` is two buffers as long as the longest share.
    """
    size, rank = group.size, group.rank
    if size == 1:
        return
    left, right = (rank - 1) % size, (rank + 1) % size

    def expect(step: int) -> tuple[Ticket, Tensor, Tensor]:
        mine = shares[(rank - step - 2) % size]
        travelling = spare[step % 2][: mine.numel()]
        return group.post([recv(travelling, left)]), travelling, mine

    arriving = expect(0)
    for step in range(size - 1):
        departure = group.post([send(shares[(rank - step - 1) % size], right)])
        arrival, travelling, mine = arriving
        if step + 2 < size:
            arriving = expect(step + 1)
        yield arrival
        merge(op, travelling, mine, mine)
        yield departure


def all_reduce(group: Group, data: Tensor, op: ReduceOp) -> Schedule:
    """Reduce-scatter around the ring, round, gather around the ring; the order is that of `reduce_around`."""
    size, rank = group.size, group.rank
    longest = -(-data.numel() // size)
    partial, result, spare = stage(group, data, op, longest, longest)
    bounds = Even(data.numel(), size)
    shares, results = Shares(partial, bounds, size), Shares(result, bounds, size)
    yield from reduce_around(group, shares, spare, op)
    mine = shares[rank]
    settle(op, mine, size, mine if result is partial else results[rank])
    yield from circulate(group, results)
    copy(data, result)


def reduce_scatter(group: Group, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp) -> Schedule:
    """The first half of the ring's all_reduce, over shares of any lengths."""
    wide = partial_dtype(op, output.dtype)
    longest = max(one.numel() for one in inputs)
    pieces = [(one.numel(), wide) for one in inputs]
    one, other, *shares = workspace(group, output, (longest, wide), (longest, wide), *pieces)
    for share, data in zip(shares, inputs, strict=True):
        load(op, data, share)
    yield from reduce_around(group, shares, (one, other), op)
    settle(op, shares[group.rank], group.size, output)
