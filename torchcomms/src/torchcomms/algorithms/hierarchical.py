"""All_reduce in two levels: reduce-scatter inside each host, all_reduce of every share across hosts, gather inside.

Every rank of a host works on a share of its own, so all of a host's channels carry data between hosts, and each only
once what a flat algorithm would carry. Hosts are blocks of `local` consecutive ranks; the last may have fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchcomms.algorithms import recursive, ring
from torchcomms.algorithms.exchange import pairwise
from torchcomms.algorithms.messages import Even, Group, copy
from torchcomms.algorithms.partial import merge, settle, stage
from torchcomms.algorithms.subgroup import Subgroup

RING = 128 << 10  # bytes that each host passes on in a round from which a ring pays

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.messages import Bounds
    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import ReduceOp


def all_reduce(group: Group, data: Tensor, op: ReduceOp, local: int) -> Schedule:
    """Reduced by the ranks of a host in their order, then across hosts as by halving or around a ring."""
    size = group.size
    local = min(local, size)
    first = group.rank - group.rank % local
    host = Subgroup(group, range(first, min(first + local, size)))
    shares, longest = Even(data.numel(), local), -(-data.numel() // local)
    partial, result, (spare,) = stage(group, data, op, max(host.size - 1, 2) * longest)
    yield from _gather_parts(host, partial, spare, shares, local, op)
    for share in range(host.rank, local, host.size):
        mine = slice(shares[share], shares[share + 1])
        column = Subgroup(group, _owners(size, local, share))
        own = partial[mine]
        yield from _across(column, own, own if result is partial else result[mine], spare, size, op)
    yield from _spread(host, result, shares, local)
    copy(data, result)


def _owners(size: int, local: int, share: int) -> range | list[int]:
    """Who reduces a share on each host: the local rank of its number, or the one that stands in on a smaller host."""
    rest = size % local
    full = range(share, size - rest, local)
    return [*full, size - rest + share % rest] if rest else full


def _gather_parts(host: Subgroup, partial: Tensor, spare: Tensor, shares: Bounds, local: int, op: ReduceOp) -> Schedule:
    """Reduce the host's parts of each share on its owner, in the order of local ranks."""
    for low in range(0, local, host.size):
        # One share for each rank of the host, in rounds if it has fewer ranks than there are shares.
        def cut(rank: int, low: int = low) -> Tensor:
            share = low + rank
            return partial[shares[share] : shares[share + 1]] if share < local else partial[:0]

        mine = cut(host.rank)
        length = mine.numel()

        def slot(peer: int, length: int = length) -> Tensor:
            place = peer - (peer > host.rank)
            return spare[place * length : (place + 1) * length]

        yield from pairwise(host, slot, cut)
        # The rest of the share's owner's parts come from the slots, in order.
        total = slot(0) if host.rank else mine
        for peer in range(1, host.size):
            part = mine if peer == host.rank else slot(peer)
            merge(op, total, part, total)
        if host.rank:
            copy(mine, total)


def in_ring(hosts: int, nbytes: float) -> bool:
    """Whether a share of so many bytes goes around a ring: between hosts that are no power of two, if it is long.

    Halving would pass the extra hosts' shares on as wholes; a ring takes as many rounds as there are hosts.
    """
    return bool(hosts & (hosts - 1)) and nbytes >= hosts * RING


def _across(column: Subgroup, partial: Tensor, result: Tensor, spare: Tensor, count: int, op: ReduceOp) -> Schedule:
    """All_reduce of one share over its owners on all hosts; rounded once, over `count` ranks."""
    if in_ring(column.size, result.nbytes):
        yield from _around(column, partial, result, spare, count, op)
        return
    core = recursive.Core.of(column.size)
    bounds, place = Even(partial.numel(), core.size), core.place(column.rank)
    yield from recursive.fold_in(column, core, partial, spare, op)
    yield from recursive.halve(column, core, partial, spare, bounds, op)
    if place is not None:
        _settle_share(partial, result, bounds, place, count, op)
    yield from recursive.double(column, core, result, bounds)
    yield from recursive.hand_out(column, core, result)


def _around(column: Subgroup, partial: Tensor, result: Tensor, spare: Tensor, count: int, op: ReduceOp) -> Schedule:
    bounds, longest = Even(partial.numel(), column.size), -(-partial.numel() // column.size)
    parts = ring.Shares(partial, bounds, column.size)
    yield from ring.reduce_around(column, parts, (spare[:longest], spare[longest : 2 * longest]), op)
    _settle_share(partial, result, bounds, column.rank, count, op)
    yield from ring.circulate(column, ring.Shares(result, bounds, column.size))


def _settle_share(partial: Tensor, result: Tensor, bounds: Bounds, index: int, count: int, op: ReduceOp) -> None:
    share = slice(bounds[index], bounds[index + 1])
    own = partial[share]
    settle(op, own, count, own if result is partial else result[share])


def _spread(host: Subgroup, result: Tensor, shares: Bounds, local: int) -> Schedule:
    """Bring every share of the result from its owner to the host's other ranks."""
    for low in range(0, local, host.size):

        def cut(rank: int, low: int = low) -> Tensor:
            share = low + rank
            return result[shares[share] : shares[share + 1]] if share < local else result[:0]

        mine = cut(host.rank)
        yield from pairwise(host, cut, lambda _, mine=mine: mine)  # type: ignore[misc]
