"""Recursive doubling and halving: log2(size) rounds between ranks whose numbers differ in one bit.

Rabenseifner's all_reduce (2004) halves the tensor on the way to reduce it and doubles it on the way to gather it, so it
moves as few bytes as a ring. A size that is no power of two first folds its extra ranks into their neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchcomms.algorithms.messages import Bounds, Even, Group, copy, recv, send
from torchcomms.algorithms.partial import load, merge, partial_dtype, settle, stage
from torchcomms.algorithms.scratch import workspace

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import ReduceOp


@dataclass(frozen=True, slots=True)
class Core:
    """The largest power of two of a group's ranks: of the first `extra` pairs the even ranks, and all after them.

    Places in the core keep the order of ranks.
    """

    size: int
    extra: int

    @classmethod
    def of(cls, size: int) -> Core:
        """The core of a group of `size` ranks."""
        power = 1 << (size.bit_length() - 1)
        return cls(power, size - power)

    def place(self, rank: int) -> int | None:
        """Where `rank` is in the core; None for a rank that is folded into the one before it."""
        if rank >= 2 * self.extra:
            return rank - self.extra
        return None if rank % 2 else rank // 2

    def rank(self, place: int) -> int:
        """The rank at a place of the core; place `size` gives the size of the group."""
        return 2 * place if place < self.extra else place + self.extra

    def helps(self, rank: int) -> bool:
        """Whether the rank after this one is folded into it."""
        return rank < 2 * self.extra


def fold_in(group: Group, core: Core, partial: Tensor, spare: Tensor, op: ReduceOp) -> Schedule:
    """Bring the extra ranks' parts into the core."""
    if core.place(group.rank) is None:
        yield group.post([send(partial, group.rank - 1)])
    elif core.helps(group.rank):
        yield group.post([recv(spare[: partial.numel()], group.rank + 1)])
        merge(op, partial, spare[: partial.numel()], partial)


def hand_out(group: Group, core: Core, result: Tensor) -> Schedule:
    """Bring the core's result to the extra ranks."""
    if core.place(group.rank) is None:
        yield group.post([recv(result, group.rank - 1)])
    elif core.helps(group.rank):
        yield group.post([send(result, group.rank + 1)])


def all_reduce_doubling(group: Group, data: Tensor, op: ReduceOp) -> Schedule:
    """Every round exchanges whole partial results, of neighbouring blocks of ranks: few rounds, for short tensors.

    Reduced as a binary tree over the ranks in their order; every rank computes the same bits.
    """
    core = Core.of(group.size)
    partial, _, (spare,) = stage(group, data, op, data.numel())
    yield from fold_in(group, core, partial, spare, op)
    place, reach = core.place(group.rank), 1
    while place is not None and reach < core.size:
        peer = core.rank(place ^ reach)
        yield group.post([recv(spare, peer), send(partial, peer)])
        first, second = (spare, partial) if place & reach else (partial, spare)
        merge(op, first, second, partial)
        reach *= 2
    yield from hand_out(group, core, partial)
    settle(op, partial, group.size, data)


def halve(group: Group, core: Core, partial: Tensor, spare: Tensor, bounds: Bounds, op: ReduceOp) -> Schedule:
    """Reduce-scatter over the core, in place: afterwards share `place` of `partial` is reduced, the rest is garbage.

    The first round pairs places half the core apart: an element is reduced as a binary tree whose leaves are the places
    in bit-reversed order.
    """
    place, reach = core.place(group.rank), core.size // 2
    low, high = 0, core.size
    while place is not None and reach:
        peer, middle = core.rank(place ^ reach), low + reach
        upper = bool(place & reach)
        keep, give = ((middle, high), (low, middle)) if upper else ((low, middle), (middle, high))
        mine = partial[bounds[keep[0]] : bounds[keep[1]]]
        theirs = spare[: mine.numel()]
        yield group.post([recv(theirs, peer), send(partial[bounds[give[0]] : bounds[give[1]]], peer)])
        merge(op, *((theirs, mine) if upper else (mine, theirs)), mine)
        (low, high), reach = keep, reach // 2


def double(group: Group, core: Core, result: Tensor, bounds: Bounds) -> Schedule:
    """All-gather over the core, in place: every rank of it has share `place` before and all shares afterwards."""
    place, reach = core.place(group.rank), 1
    while place is not None and reach < core.size:
        peer, low = core.rank(place ^ reach), place - place % reach
        other = low ^ reach
        mine = result[bounds[low] : bounds[low + reach]]
        yield group.post([recv(result[bounds[other] : bounds[other + reach]], peer), send(mine, peer)])
        reach *= 2


def all_reduce_halving(group: Group, data: Tensor, op: ReduceOp) -> Schedule:
    """Rabenseifner: halve to reduce, round, double to gather. The order is that of `halve`, extra ranks first."""
    core, count = Core.of(group.size), data.numel()
    partial, result, (spare,) = stage(group, data, op, count if core.extra else -(-count // 2))
    bounds = Even(count, core.size)
    yield from fold_in(group, core, partial, spare, op)
    yield from halve(group, core, partial, spare, bounds, op)
    place = core.place(group.rank)
    if place is not None:
        share = slice(bounds[place], bounds[place + 1])
        mine = partial[share]
        settle(op, mine, group.size, mine if result is partial else result[share])
    yield from double(group, core, result, bounds)
    yield from hand_out(group, core, result)
    copy(data, result)


def reduce_scatter_halving(group: Group, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp) -> Schedule:
    """Recursive halving over shares of any lengths; a rank of the core also reduces for the extra one after it."""
    core, wide = Core.of(group.size), partial_dtype(op, output.dtype)
    offsets = [0]
    for one in inputs:
        offsets.append(offsets[-1] + one.numel())
    partial, spare = workspace(group, output, (offsets[-1], wide), (offsets[-1], wide))
    for rank, one in enumerate(inputs):
        load(op, one, partial[offsets[rank] : offsets[rank + 1]])
    bounds = [offsets[core.rank(place)] for place in range(core.size + 1)]
    yield from fold_in(group, core, partial, spare, op)
    yield from halve(group, core, partial, spare, bounds, op)
    mine = partial[offsets[group.rank] : offsets[group.rank + 1]]
    if core.place(group.rank) is None:
        yield group.post([recv(mine, group.rank - 1)])
    elif core.helps(group.rank):
        yield group.post([send(partial[offsets[group.rank + 1] : offsets[group.rank + 2]], group.rank + 1)])
    settle(op, mine, group.size, output)
