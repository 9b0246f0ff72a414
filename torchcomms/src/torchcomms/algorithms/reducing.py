"""Collectives that reduce: all_reduce, reduce, reduce_scatter, scan.

Every element is reduced once, by one owner (or by each rank alike), from all ranks' parts in the order of ranks. So the
result does not depend on the algorithm, on timing or on the cut, half types are rounded once, and all ranks hold the
same bits. A ring that passes partial sums on would move no fewer bytes and would lose all of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from torchcomms.algorithms.gathering import peers
from torchcomms.algorithms.messages import Group, check_list, check_root, check_same, chunks, flat, recv, send
from torchcomms.algorithms.reduction import check, fold
from torchcomms.errors import UnsupportedReduction

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import ReduceOp

LONG = 32 << 10  # bytes from which each of more than two ranks reduces its share only


def all_reduce(group: Group, tensor: Tensor, op: ReduceOp) -> Schedule:
    """Replace `tensor` by the reduction over all ranks, on every rank."""
    check(op, tensor.dtype)
    data = flat(tensor)
    # Between two ranks whole tensors are no more bytes than shares and results, and one round less.
    if group.size > 2 and data.nbytes >= LONG and data.numel() >= group.size:
        return _reduce_shares(group, data, op)
    return _exchange_all(group, data, op)


def _exchange_all(group: Group, data: Tensor, op: ReduceOp) -> Schedule:
    parts = _slots(group, data)
    if group.size > 1:
        batch = [recv(parts[peer], peer) for peer in peers(group)]
        yield group.post(batch + [send(data, peer) for peer in peers(group)])
    fold(op, parts, data)


def _reduce_shares(group: Group, data: Tensor, op: ReduceOp) -> Schedule:
    shares = chunks(data, group.size)
    mine = shares[group.rank]
    parts = _slots(group, mine)
    batch = [recv(parts[peer], peer) for peer in peers(group)]
    first = group.post(batch + [send(shares[peer], peer) for peer in peers(group)])
    # A peer's result comes after it has all of our share, so it may land where that share was sent from.
    results = group.post([recv(shares[peer], peer) for peer in peers(group)])
    yield first
    fold(op, parts, mine)
    last = group.post([send(mine, peer) for peer in peers(group)])
    yield results
    yield last


def reduce(group: Group, tensor: Tensor, root: int, op: ReduceOp) -> Schedule:
    """Replace `tensor` of `root` by the reduction over all ranks."""
    check_root(group, root)
    check(op, tensor.dtype)
    data = flat(tensor)
    if group.size > 2 and data.nbytes >= LONG and data.numel() >= group.size:
        return _reduce_shares_to(group, data, root, op)
    return _collect(group, data, root, op)


def _collect(group: Group, data: Tensor, root: int, op: ReduceOp) -> Schedule:
    if group.rank != root:
        yield group.post([send(data, root)])
        return
    parts = _slots(group, data)
    yield group.post([recv(parts[peer], peer) for peer in peers(group)])
    fold(op, parts, data)


def _reduce_shares_to(group: Group, data: Tensor, root: int, op: ReduceOp) -> Schedule:
    shares = chunks(data, group.size)
    parts = _slots(group, shares[group.rank])
    batch = [recv(parts[peer], peer) for peer in peers(group)]
    first = group.post(batch + [send(shares[peer], peer) for peer in peers(group)])
    if group.rank == root:
        results = group.post([recv(shares[peer], peer) for peer in peers(group)])
        yield first
        fold(op, parts, shares[root])
        yield results
    else:
        yield first
        result = torch.empty_like(shares[group.rank])
        fold(op, parts, result)
        yield group.post([send(result, root)])


def reduce_scatter(group: Group, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp) -> Schedule:
    """Reduce `inputs[r]` of all ranks into `output` of rank r."""
    check_list(group, inputs, "inputs")
    check_same(output, inputs[group.rank], "output")
    check(op, output.dtype)
    return _reduce_scatter(group, flat(output), [flat(one) for one in inputs], op)


def _reduce_scatter(group: Group, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp) -> Schedule:
    parts = _slots(group, inputs[group.rank])
    batch = [recv(parts[peer], peer) for peer in peers(group)]
    yield group.post(batch + [send(inputs[peer], peer) for peer in peers(group)])
    fold(op, parts, output)


def scan(group: Group, tensor: Tensor, op: ReduceOp) -> Schedule:
    """Replace `tensor` of rank r by the reduction over ranks 0..r."""
    if op.kind == "avg":
        raise UnsupportedReduction("avg has no scan: scan with sum and divide by rank + 1", op="avg")
    check(op, tensor.dtype)
    return _scan(group, flat(tensor), op)


def _scan(group: Group, data: Tensor, op: ReduceOp) -> Schedule:
    parts = _slots(group, data)[: group.rank + 1]
    batch = [recv(parts[peer], peer) for peer in range(group.rank)]
    yield group.post(batch + [send(data, peer) for peer in range(group.rank + 1, group.size)])
    fold(op, parts, data)


def _slots(group: Group, mine: Tensor) -> list[Tensor]:
    """One tensor for each rank's part: the group's scratch memory for the others', `mine` for this rank's."""
    slots = list(group.scratch((group.size - 1, mine.numel()), mine).unbind(0))
    slots.insert(group.rank, mine)
    return slots
