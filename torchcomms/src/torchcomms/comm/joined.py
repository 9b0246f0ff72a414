"""Plans of the collectives whose tensors for all ranks lie in one: they run on views of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from torchcomms import layout
from torchcomms.algorithms import reduction
from torchcomms.algorithms.messages import check_root, check_same
from torchcomms.collective import Plan, Step
from torchcomms.comm.plans import call, lengths
from torchcomms.comm.staging import fill
from torchcomms.errors import InvalidCall

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import ReduceOp, Ticket
    from torchcomms.comm.group import Group


def all_gather(group: Group, output: Tensor, tensor: Tensor) -> Plan:
    group.check_target(output)
    layout.check_tensor(tensor, group.device)
    (whole,) = fill(group, [output])
    blocks, mine = _equal(group, whole, "output"), layout.dense(tensor)
    check_same(blocks[0], tensor, "a part of output")

    def begin(deadline: float) -> Ticket:
        return group.backend.all_gather(blocks, mine, deadline=deadline)

    return Plan(call("all_gather", tensor, sizes=lengths(blocks)), Step(begin, [output], [whole]))


def gather(group: Group, output: Tensor | None, tensor: Tensor, root: int) -> Plan:
    check_root(group.backend, root)
    layout.check_tensor(tensor, group.device)
    made, mine = call("gather", tensor, root=root), layout.dense(tensor)
    if group.backend.rank != root:
        return Plan(made, Step(lambda deadline: group.backend.gather(None, mine, root, deadline=deadline)))
    if output is None:
        raise InvalidCall("output is None on the root; pass a tensor with a part for each rank")
    group.check_target(output)
    (whole,) = fill(group, [output])
    blocks = _equal(group, whole, "output")
    check_same(blocks[0], tensor, "a part of output")

    def begin(deadline: float) -> Ticket:
        return group.backend.gather(blocks, mine, root, deadline=deadline)

    return Plan(made, Step(begin, [output], [whole]))


def reduce_scatter(group: Group, output: Tensor, tensor: Tensor, op: ReduceOp) -> Plan:
    group.check_target(output)
    layout.check_tensor(tensor, group.device)
    reduction.check(op, output.dtype)
    parts = _equal(group, layout.dense(tensor), "input")
    check_same(output, parts[0], "output")
    (buffer,) = fill(group, [output])

    def begin(deadline: float) -> Ticket:
        return group.backend.reduce_scatter(buffer, parts, op, deadline=deadline)

    made = call("reduce_scatter", output, sizes=lengths(parts), op=op.kind)
    return Plan(made, Step(begin, [output], [buffer]))


def all_to_all(
    group: Group,
    output: Tensor,
    tensor: Tensor,
    output_rows: Sequence[int] | None,
    input_rows: Sequence[int] | None,
) -> Plan:
    group.check_target(output)
    layout.check_tensor(tensor, group.device)
    (whole,) = fill(group, [output])
    blocks = _cut(group, whole, output_rows, "output")
    parts = _cut(group, layout.dense(tensor), input_rows, "input")
    rank = group.backend.rank
    check_same(blocks[rank], parts[rank], f"part {rank} of output")

    def begin(deadline: float) -> Ticket:
        return group.backend.all_to_all(blocks, parts, deadline=deadline)

    return Plan(call("all_to_all", tensor), Step(begin, [output], [whole]))


def all_reduce(group: Group, tensors: Sequence[Tensor], op: ReduceOp) -> Plan:
    """The tensors travel in one private buffer, so they stay as they are until all are reduced."""
    if len({tensor.dtype for tensor in tensors}) != 1:
        dtypes = ", ".join(sorted({str(tensor.dtype) for tensor in tensors})) or "no tensor"
        raise InvalidCall(f"a coalesced all_reduce of {dtypes}: pass tensors of one dtype, and call it for each")
    for tensor in tensors:
        group.check_target(tensor)
    reduction.check(op, tensors[0].dtype)
    buffer = torch.cat([layout.dense(tensor).view(-1) for tensor in tensors])
    parts = [
        part.view(tensor.shape) for part, tensor in zip(torch.split(buffer, lengths(tensors)), tensors, strict=True)
    ]

    def begin(deadline: float) -> Ticket:
        return group.backend.all_reduce(buffer, op, deadline=deadline)

    made = call("all_reduce", buffer, count=buffer.numel(), sizes=lengths(tensors), op=op.kind)
    return Plan(made, Step(begin, tensors, parts))


def _equal(group: Group, whole: Tensor, name: str) -> list[Tensor]:
    """The flat parts of a dense tensor, one for each rank."""
    size = group.backend.size
    if whole.numel() % size:
        raise InvalidCall(f"{name} has {whole.numel()} elements, which {size} ranks cannot share equally")
    count = whole.numel() // size
    return [whole.view(-1)[rank * count : (rank + 1) * count] for rank in range(size)]


def _cut(group: Group, whole: Tensor, rows: Sequence[int] | None, name: str) -> list[Tensor]:
    if not rows:
        return _equal(group, whole, name)
    length = whole.shape[0] if whole.dim() else 1
    if len(rows) != group.backend.size or sum(rows) != length or min(rows) < 0:
        raise InvalidCall(
            f"{name} of {length} rows cannot be split into {list(rows)}: "
            f"pass {group.backend.size} lengths that sum to {length}"
        )
    width = whole.numel() // length if length else 0
    bounds = [sum(rows[:rank]) * width for rank in range(len(rows) + 1)]
    return [whole.view(-1)[low:high] for low, high in pairwise(bounds)]
