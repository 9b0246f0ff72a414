"""Reductions in three stages: inside each host, across hosts, inside again.

Order: the ranks of a host in theirs, then the hosts as the wire's algorithm takes them; the same bits on every rank and
every time. Half types are widened before the first stage and rounded after the last. Results are staged, so that after
a failure a tensor is as it was or completely reduced (in pieces, if it is longer than 64 MiB). Long tensors are cut
into shards, one for each place that every host has, so that all of these ranks use the wire at once; short ones go
through one rank of each host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from torchcomms.algorithms import reducing
from torchcomms.algorithms.messages import check_list, check_root, check_same, flat, recv, send
from torchcomms.algorithms.reducing import STAGED
from torchcomms.algorithms.subgroup import Subgroup

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.providers.hier.accumulation import Accumulation
    from torchcomms.providers.hier.groups import Layout

LONG = 64 << 10  # bytes from which shards on all rails beat one rank of each host


def all_reduce(group: Layout, tensor: Tensor, how: Accumulation, deadline: float) -> Schedule:
    """Replace `tensor` by the reduction over all ranks, on every rank."""
    for data in _pieces(flat(tensor)):
        form = _sharded if data.nbytes >= LONG and group.rails > 1 else _led
        yield from form(group, data, how, deadline)


def _pieces(data: Tensor) -> Iterator[Tensor]:
    """Parts of at most `STAGED` bytes: what is staged, and written as a whole."""
    step = STAGED // data.element_size()
    return (data[low : low + step] for low in range(0, max(1, data.numel()), step))


def _led(group: Layout, data: Tensor, how: Accumulation, deadline: float) -> Schedule:
    total = how.widen(data, private=True)
    yield group.inside(group.local.reduce(total, 0, how.stage, deadline=deadline))
    if group.spot == 0:
        yield from reducing.all_reduce(group.rail(), total, how.stage)
    yield group.inside(group.local.broadcast(total, 0, deadline=deadline))
    how.narrow(total, data, group.size)


def _sharded(group: Layout, data: Tensor, how: Accumulation, deadline: float) -> Schedule:
    parts = group.shards(how.widen(data))
    total = group.scratch((data.numel(),), parts[0])
    shards = group.shards(total)
    mine = shards[group.spot]
    yield group.inside(group.local.reduce_scatter(mine, parts, how.stage, deadline=deadline))
    if group.spot < group.rails:
        yield from reducing.all_reduce(group.rail(), mine, how.stage)
    yield group.inside(group.local.all_gather(shards, mine, deadline=deadline))
    how.narrow(total, data, group.size)


def reduce(group: Layout, tensor: Tensor, root: int, how: Accumulation, deadline: float) -> Schedule:
    """Replace `tensor` of `root` by the reduction over all ranks."""
    check_root(group, root)
    for data in _pieces(flat(tensor)):
        yield from _reduce(group, data, root, how, deadline)


def _reduce(group: Layout, data: Tensor, root: int, how: Accumulation, deadline: float) -> Schedule:
    collectors = group.leaders(root)
    collector = collectors[group.host]
    total = how.widen(data, private=group.rank == collector)
    yield group.inside(group.local.reduce(total, group.mates.index(collector), how.stage, deadline=deadline))
    if group.rank == collector:
        host = group.topology.place(root)[0]
        yield from reducing.reduce(Subgroup(group.wire, collectors), total, host, how.stage)
    if group.rank == root:
        how.narrow(total, data, group.size)


def reduce_scatter(
    group: Layout, output: Tensor, inputs: Sequence[Tensor], how: Accumulation, deadline: float
) -> Schedule:
    """Reduce `inputs[r]` of all ranks into `output` of rank r."""
    check_list(group, inputs, "inputs")
    check_same(output, inputs[group.rank], "output")
    return _reduce_scatter(group, flat(output), [flat(one) for one in inputs], how, deadline)


def _reduce_scatter(
    group: Layout, output: Tensor, inputs: Sequence[Tensor], how: Accumulation, deadline: float
) -> Schedule:
    packs = [_pack([inputs[rank] for host in group.carried(rail) for rank in host], how) for rail in range(group.rails)]
    packs += [packs[0][:0]] * (len(group.mates) - group.rails)
    part = group.scratch(tuple(packs[group.spot].shape), packs[0])
    yield group.inside(group.local.reduce_scatter(part, packs, how.stage, deadline=deadline))
    total = torch.empty(output.numel(), dtype=how.wide, device=output.device)
    if group.spot < group.rails:
        yield from _across(group, part, total, inputs, how)
    else:
        yield group.inside(group.local.post([recv(total, group.spot % group.rails)]))
    how.narrow(total, output, group.size)


def _pack(parts: Sequence[Tensor], how: Accumulation) -> Tensor:
    return torch.cat([how.widen(part) for part in parts])


def _cut(data: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    return [data[end - length : end] for length, end in zip(lengths, accumulate(lengths), strict=True)]


def _across(group: Layout, part: Tensor, total: Tensor, inputs: Sequence[Tensor], how: Accumulation) -> Schedule:
    """Reduce this rail's blocks over the hosts, and hand those of mates that have no rail on to them."""
    carried = group.carried(group.spot)
    pieces = _cut(part, [sum(inputs[rank].numel() for rank in ranks) for ranks in carried])
    done = torch.empty_like(pieces[group.host])
    yield from reducing.reduce_scatter(group.rail(), done, pieces, how.stage)
    ranks = carried[group.host]
    blocks = _cut(done, [inputs[rank].numel() for rank in ranks])
    total.copy_(blocks[0])
    yield group.inside(
        group.local.post(
            [send(block, group.mates.index(rank)) for rank, block in zip(ranks[1:], blocks[1:], strict=True)]
        )
    )
