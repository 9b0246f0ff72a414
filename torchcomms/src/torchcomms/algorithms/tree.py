"""Trees: k-nomial and van de Geijn broadcast, binomial reduce, and the two one after the other as an all_reduce."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchcomms.algorithms.messages import Group, check_root, chunks, copy, flat, recv, send
from torchcomms.algorithms.partial import merge, settle, stage
from torchcomms.algorithms.ring import circulate

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import ReduceOp

WIDE = 8  # children of a rank at each level of the wide tree


def broadcast(group: Group, tensor: Tensor, root: int) -> Schedule:
    """Copy `tensor` of `root` into every rank's."""
    from torchcomms.algorithms.choice import chosen

    check_root(group, root)
    data = flat(tensor)
    algorithm = chosen(group, "broadcast", data.nbytes)
    if algorithm == "scatter":
        return scatter_and_gather(group, data, root)
    return knomial(group, data, root, WIDE if algorithm == "wide tree" else 2)


def knomial(group: Group, data: Tensor, root: int, radix: int = 2) -> Schedule:
    """Down a tree in which a rank's children are its number, counted from the root, with one lower digit set.

    The binomial tree for radix 2. The largest subtree is served first.
    """
    size, place = group.size, (group.rank - root) % group.size
    weight = 1  # of the lowest digit of `place` that is not zero
    while weight < size and place % (weight * radix) == 0:
        weight *= radix
    if place:
        yield group.post([recv(data, (place - place % (weight * radix) + root) % size)])
    children = []
    while weight > 1:
        weight //= radix
        children += [place + digit * weight for digit in range(1, radix) if place + digit * weight < size]
    if children:
        yield group.post([send(data, (child + root) % size) for child in children])


def scatter_and_gather(group: Group, data: Tensor, root: int) -> Schedule:
    """Scatter, then gather around the ring: about twice the tensor through each rank, however many there are."""
    parts = chunks(data, group.size)
    if group.rank == root:
        yield group.post([send(parts[peer], peer) for peer in range(group.size) if peer != root])
    else:
        yield group.post([recv(parts[group.rank], root)])
    yield from circulate(group, parts)


def climb(group: Group, partial: Tensor, spare: Tensor, root: int, op: ReduceOp) -> Schedule:
    """Binomial reduce: afterwards `partial` of the root is the reduction, that of others is garbage.

    Reduced as a binary tree over the ranks in order, counted from the root.
    """
    size, place, reach = group.size, (group.rank - root) % group.size, 1
    while reach < size:
        if place & reach:
            yield group.post([send(partial, (place - reach + root) % size)])
            return
        if place + reach < size:
            yield group.post([recv(spare, (place + reach + root) % size)])
            merge(op, partial, spare, partial)
        reach *= 2


def reduce(group: Group, data: Tensor, root: int, op: ReduceOp) -> Schedule:
    """Up the binomial tree to the root."""
    partial, _, (spare,) = stage(group, data, op, data.numel())
    yield from climb(group, partial, spare, root, op)
    if group.rank == root:
        settle(op, partial, group.size, data)


def all_reduce(group: Group, data: Tensor, op: ReduceOp) -> Schedule:
    """Up the binomial tree to rank 0, and down again; the order is that of `climb`."""
    partial, result, (spare,) = stage(group, data, op, data.numel())
    yield from climb(group, partial, spare, 0, op)
    if group.rank == 0:
        settle(op, partial, group.size, result)
    yield from knomial(group, result, 0)
    copy(data, result)
