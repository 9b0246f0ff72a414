"""Collectives that only move data: all_gather, all_to_all, gather, scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchcomms.algorithms import bruck
from torchcomms.algorithms.choice import chosen
from torchcomms.algorithms.exchange import pairwise, peers
from torchcomms.algorithms.messages import Group, check_list, check_root, check_same, copy, flat, recv, send
from torchcomms.algorithms.ring import circulate

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import P2P

__all__ = ["all_gather", "all_to_all", "gather", "peers", "scatter"]


def all_gather(group: Group, outputs: Sequence[Tensor], tensor: Tensor) -> Schedule:
    """Copy rank r's `tensor` into `outputs[r]` everywhere."""
    blocks = [flat(output) for output in check_list(group, outputs, "outputs")]
    check_same(blocks[group.rank], tensor, f"outputs[{group.rank}]")
    return _all_gather(group, blocks, flat(tensor))


def _all_gather(group: Group, blocks: Sequence[Tensor], data: Tensor) -> Schedule:
    algorithm = chosen(group, "all_gather", max(block.nbytes for block in blocks))
    if algorithm == "bruck":
        yield from bruck.all_gather(group, blocks, data)
        return
    copy(blocks[group.rank], data)
    if algorithm == "ring":
        yield from circulate(group, blocks)
    else:
        yield from pairwise(group, blocks.__getitem__, lambda _: data)


def all_to_all(group: Group, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Schedule:
    """Copy `inputs[r]` of rank s into `outputs[s]` of rank r."""
    check_list(group, outputs, "outputs")
    check_list(group, inputs, "inputs")
    check_same(outputs[group.rank], inputs[group.rank], f"outputs[{group.rank}]")
    return _all_to_all(group, [flat(output) for output in outputs], [flat(one) for one in inputs])


def _all_to_all(group: Group, outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Schedule:
    copy(outputs[group.rank], inputs[group.rank])
    yield from pairwise(group, outputs.__getitem__, inputs.__getitem__)


def gather(group: Group, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int) -> Schedule:
    """Copy rank r's `tensor` into `outputs[r]` of `root`."""
    check_root(group, root)
    if group.rank != root:
        return _one(group, [send(flat(tensor), root)])
    blocks = [flat(output) for output in check_list(group, outputs, "outputs of the root")]
    check_same(blocks[root], tensor, f"outputs[{root}]")
    copy(blocks[root], flat(tensor))
    return _one(group, [recv(blocks[peer], peer) for peer in peers(group)])


def scatter(group: Group, output: Tensor, inputs: Sequence[Tensor] | None, root: int) -> Schedule:
    """Copy `inputs[r]` of `root` into `output` of rank r."""
    check_root(group, root)
    if group.rank != root:
        return _one(group, [recv(flat(output), root)])
    blocks = [flat(one) for one in check_list(group, inputs, "inputs of the root")]
    check_same(output, blocks[root], "output")
    copy(flat(output), blocks[root])
    return _one(group, [send(blocks[peer], peer) for peer in peers(group)])


def _one(group: Group, batch: Sequence[P2P]) -> Schedule:
    yield group.post(batch)
