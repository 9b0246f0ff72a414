"""Broadcast, all-gather and barrier in stages, so that a byte crosses to each other host once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcomms.algorithms import dissemination, tree
from torchcomms.algorithms.messages import check_list, check_root, check_same, flat, recv, send
from torchcomms.algorithms.subgroup import Subgroup

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.providers.hier.groups import Layout

LONG = 64 << 10  # bytes from which shards on all rails beat one rank of each host


def broadcast(group: Layout, tensor: Tensor, root: int, deadline: float) -> Schedule:
    """Copy `tensor` of `root` into every rank's."""
    check_root(group, root)
    if tensor.nbytes >= LONG and group.rails > 1:
        return _sharded(group, flat(tensor), root, deadline)
    return _led(group, flat(tensor), root, deadline)


def _led(group: Layout, data: Tensor, root: int, deadline: float) -> Schedule:
    leaders = group.leaders(root)
    leader = leaders[group.host]
    if group.rank == leader:
        yield from tree.broadcast(Subgroup(group.wire, leaders), data, group.topology.place(root)[0])
    yield group.inside(group.local.broadcast(data, group.mates.index(leader), deadline=deadline))


def _sharded(group: Layout, data: Tensor, root: int, deadline: float) -> Schedule:
    source, spot = group.topology.place(root)
    shards = group.shards(data)
    if group.host == source:
        yield group.inside(group.local.broadcast(data, spot, deadline=deadline))
    if group.spot < group.rails:
        yield from tree.broadcast(group.rail(), shards[group.spot], source)
    if group.host != source:
        yield group.inside(group.local.all_gather(shards, shards[group.spot], deadline=deadline))


def all_gather(group: Layout, outputs: Sequence[Tensor], tensor: Tensor, deadline: float) -> Schedule:
    """Copy rank r's `tensor` into `outputs[r]` everywhere."""
    blocks = [flat(output) for output in check_list(group, outputs, "outputs")]
    check_same(blocks[group.rank], tensor, f"outputs[{group.rank}]")
    return _all_gather(group, blocks, flat(tensor), deadline)


def _all_gather(group: Layout, blocks: Sequence[Tensor], data: Tensor, deadline: float) -> Schedule:
    yield group.inside(group.local.all_gather([blocks[rank] for rank in group.mates], data, deadline=deadline))
    others = [host for host in range(len(group.topology.hosts)) if host != group.host]
    if group.spot < group.rails:
        carried = group.carried(group.spot)
        batch = [recv(blocks[rank], host) for host in others for rank in carried[host]]
        yield group.rail().post(batch + [send(blocks[rank], host) for host in others for rank in carried[group.host]])
    arrived = [(rail, rank) for rail in range(group.rails) for host in others for rank in group.carried(rail)[host]]
    yield from [group.inside(group.local.broadcast(blocks[rank], rail, deadline=deadline)) for rail, rank in arrived]


def barrier(group: Layout, deadline: float) -> Schedule:
    """Complete nowhere before every rank has started it."""
    yield group.inside(group.local.barrier(deadline=deadline))
    if group.spot == 0:
        yield from dissemination.barrier(group.rail())
    yield group.inside(group.local.barrier(deadline=deadline))
