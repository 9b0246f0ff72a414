"""Collectives that reduce: all_reduce, reduce, reduce_scatter, scan.

Results are staged in scratch memory and written at the end, so after a failure an in-place tensor is either as it was
or completely reduced; one longer than 64 MiB is reduced in pieces of that length, each of them whole.

The order of reduction is that of the ranks for "exchange" and "shares"; the other algorithms document theirs. It never
depends on timing: all ranks hold the same bits, every time. Half types are rounded once, whatever the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from torchcomms.algorithms import hierarchical, recursive, ring, shares, tree
from torchcomms.algorithms.choice import chosen, table_of
from torchcomms.algorithms.exchange import pairwise
from torchcomms.algorithms.messages import Group, check_list, check_root, check_same, flat, recv, send
from torchcomms.algorithms.reduction import check, fold
from torchcomms.errors import UnsupportedReduction

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import ReduceOp

STAGED = 64 << 20  # bytes of a tensor that are reduced and written as a whole


def _hierarchical(group: Group, data: Tensor, op: ReduceOp) -> Schedule:
    return hierarchical.all_reduce(group, data, op, table_of(group).local)


ALL_REDUCE: Mapping[str, Callable[[Group, Tensor, ReduceOp], Schedule]] = {
    "exchange": shares.exchange,
    "shares": shares.all_reduce,
    "doubling": recursive.all_reduce_doubling,
    "halving": recursive.all_reduce_halving,
    "ring": ring.all_reduce,
    "tree": tree.all_reduce,
    "hierarchical": _hierarchical,
}
REDUCE: Mapping[str, Callable[[Group, Tensor, int, ReduceOp], Schedule]] = {
    "exchange": shares.collect,
    "shares": shares.reduce,
    "tree": tree.reduce,
}


def all_reduce(group: Group, tensor: Tensor, op: ReduceOp) -> Schedule:
    """Replace `tensor` by the reduction over all ranks, on every rank."""
    check(op, tensor.dtype)

    def piece(data: Tensor) -> Schedule:
        return ALL_REDUCE[chosen(group, "all_reduce", data.nbytes)](group, data, op)

    return _in_pieces(flat(tensor), piece)


def reduce(group: Group, tensor: Tensor, root: int, op: ReduceOp) -> Schedule:
    """Replace `tensor` of `root` by the reduction over all ranks."""
    check_root(group, root)
    check(op, tensor.dtype)

    def piece(data: Tensor) -> Schedule:
        return REDUCE[chosen(group, "reduce", data.nbytes)](group, data, root, op)

    return _in_pieces(flat(tensor), piece)


def _in_pieces(data: Tensor, schedule: Callable[[Tensor], Schedule]) -> Schedule:
    if data.nbytes <= STAGED:
        return schedule(data)
    return _one_by_one(data, int(STAGED * data.numel() / data.nbytes), schedule)


def _one_by_one(data: Tensor, length: int, schedule: Callable[[Tensor], Schedule]) -> Schedule:
    for low in range(0, data.numel(), length):
        yield from schedule(data[low : low + length])


def reduce_scatter(group: Group, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp) -> Schedule:
    """Reduce `inputs[r]` of all ranks into `output` of rank r."""
    check_list(group, inputs, "inputs")
    check_same(output, inputs[group.rank], "output")
    check(op, output.dtype)
    data = [flat(one) for one in inputs]
    algorithm = chosen(group, "reduce_scatter", max(one.nbytes for one in data))
    return REDUCE_SCATTER[algorithm](group, flat(output), data, op)


def _reduce_scatter(group: Group, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp) -> Schedule:
    parts, _ = shares.slots(group, inputs[group.rank])
    yield from pairwise(group, parts.__getitem__, inputs.__getitem__)
    fold(op, parts, output)


REDUCE_SCATTER: Mapping[str, Callable[[Group, Tensor, Sequence[Tensor], ReduceOp], Schedule]] = {
    "exchange": _reduce_scatter,
    "halving": recursive.reduce_scatter_halving,
    "ring": ring.reduce_scatter,
}


def scan(group: Group, tensor: Tensor, op: ReduceOp) -> Schedule:
    """Replace `tensor` of rank r by the reduction over ranks 0..r."""
    if op.kind == "avg":
        raise UnsupportedReduction("avg has no scan: scan with sum and divide by rank + 1", op="avg")
    check(op, tensor.dtype)
    return _scan(group, flat(tensor), op)


def _scan(group: Group, data: Tensor, op: ReduceOp) -> Schedule:
    parts, _ = shares.slots(group, data)
    batch = [recv(parts[peer], peer) for peer in range(group.rank)]
    yield group.post(batch + [send(data, peer) for peer in range(group.rank + 1, group.size)])
    fold(op, parts[: group.rank + 1], data)
