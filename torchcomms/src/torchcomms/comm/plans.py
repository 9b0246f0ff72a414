"""Plans: what each collective agrees on, the buffers it runs on and where its results go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torchcomms import fingerprint, layout
from torchcomms.algorithms import reduction
from torchcomms.algorithms.messages import check_root, check_same
from torchcomms.collective import Plan, Step
from torchcomms.comm.staging import fill, in_place
from torchcomms.errors import UnsupportedReduction
from torchcomms.fingerprint import Call

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import ReduceOp, Ticket
    from torchcomms.comm.group import Group


def call(
    operation: str,
    tensor: Tensor | None = None,
    *,
    count: int = -1,
    sizes: Sequence[int] = (),
    root: int = -1,
    op: str = "",
) -> Callable[[int], Call]:
    """The fingerprint, but for its sequence number; made only where the communicator checks, on the caller's thread."""

    def numbered(sequence: int) -> Call:
        dtype = "" if tensor is None else str(tensor.dtype)
        lengths = fingerprint.checksum(tuple(sizes)) if sizes else 0
        return Call(operation, sequence, dtype, count, lengths, root, op, fingerprint.call_site())

    return numbered


def lengths(tensors: Sequence[Tensor]) -> list[int]:
    """The counts of elements."""
    return [tensor.numel() for tensor in tensors]


def broadcast(group: Group, tensor: Tensor, root: int) -> Plan:
    check_root(group.backend, root)
    made = call("broadcast", tensor, count=tensor.numel(), root=root)
    if root == group.backend.rank:
        layout.check_tensor(tensor, group.device)
        buffer = layout.dense(tensor)
        return Plan(made, Step(lambda deadline: group.backend.broadcast(buffer, root, deadline=deadline)))
    group.check_target(tensor)
    (buffer,) = fill(group, [tensor])
    return Plan(
        made, Step(lambda deadline: group.backend.broadcast(buffer, root, deadline=deadline), [tensor], [buffer])
    )


def all_reduce(group: Group, tensor: Tensor, op: ReduceOp, compress: str | None = None) -> Plan:
    group.check_target(tensor)
    reduction.check(op, tensor.dtype)
    if compress is not None:
        return _compressed(group, tensor, op, compress)
    made = call("all_reduce", tensor, count=tensor.numel(), op=op.kind)

    def begin(buffer: Tensor, deadline: float) -> Ticket:
        return group.backend.all_reduce(buffer, op, deadline=deadline)

    return Plan(made, in_place(group, tensor, begin))


def _compressed(group: Group, tensor: Tensor, op: ReduceOp, kind: str) -> Plan:
    from torchcomms import compress

    compress.check(tensor, op, kind)
    buffer = layout.dense(tensor)  # compress writes it when everything has come

    def begin(deadline: float) -> Ticket:
        return compress.all_reduce(group.backend, buffer, op, kind, deadline=deadline)  # type: ignore[arg-type]

    made = call("all_reduce", tensor, count=tensor.numel(), op=f"{op.kind} as {kind}")
    return Plan(made, Step(begin, [tensor], [buffer]))


def reduce(group: Group, tensor: Tensor, root: int, op: ReduceOp) -> Plan:
    check_root(group.backend, root)
    group.check_target(tensor)
    reduction.check(op, tensor.dtype)

    def begin(buffer: Tensor, deadline: float) -> Ticket:
        return group.backend.reduce(buffer, root, op, deadline=deadline)

    made = call("reduce", tensor, count=tensor.numel(), root=root, op=op.kind)
    return Plan(made, in_place(group, tensor, begin, written=root == group.backend.rank))


def scan(group: Group, tensor: Tensor, op: ReduceOp) -> Plan:
    if op.kind == "avg":
        raise UnsupportedReduction("avg has no scan: scan with sum and divide by rank + 1", op="avg")
    group.check_target(tensor)
    reduction.check(op, tensor.dtype)

    def begin(buffer: Tensor, deadline: float) -> Ticket:
        return group.backend.scan(buffer, op, deadline=deadline)

    return Plan(call("scan", tensor, count=tensor.numel(), op=op.kind), in_place(group, tensor, begin))


def all_gather(group: Group, tensors: Sequence[Tensor] | None, tensor: Tensor, name: str = "tensor_list") -> Plan:
    rank = group.backend.rank
    targets = group.check_targets(tensors, name)
    layout.check_tensor(tensor, group.device)
    check_same(targets[rank], tensor, f"{name}[{rank}]")
    buffers, mine = fill(group, targets), layout.dense(tensor)

    def begin(deadline: float) -> Ticket:
        return group.backend.all_gather(buffers, mine, deadline=deadline)

    return Plan(call("all_gather", tensor, sizes=lengths(targets)), Step(begin, targets, buffers))


def reduce_scatter(
    group: Group, output: Tensor, inputs: Sequence[Tensor] | None, op: ReduceOp, name: str = "input_list"
) -> Plan:
    sources = group.check_sources(inputs, name)
    group.check_target(output)
    check_same(output, sources[group.backend.rank], "output")
    reduction.check(op, output.dtype)
    (buffer,), parts = fill(group, [output]), [layout.dense(source) for source in sources]

    def begin(deadline: float) -> Ticket:
        return group.backend.reduce_scatter(buffer, parts, op, deadline=deadline)

    made = call("reduce_scatter", output, sizes=lengths(sources), op=op.kind)
    return Plan(made, Step(begin, [output], [buffer]))


def all_to_all(group: Group, outputs: Sequence[Tensor] | None, inputs: Sequence[Tensor] | None) -> Plan:
    rank = group.backend.rank
    targets = group.check_targets(outputs, "output_tensor_list")
    sources = group.check_sources(inputs, "input_tensor_list")
    check_same(targets[rank], sources[rank], f"output_tensor_list[{rank}]")
    buffers, parts = fill(group, targets), [layout.dense(source) for source in sources]

    def begin(deadline: float) -> Ticket:
        return group.backend.all_to_all(buffers, parts, deadline=deadline)

    return Plan(call("all_to_all", sources[0]), Step(begin, targets, buffers))


def gather(group: Group, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int) -> Plan:
    check_root(group.backend, root)
    layout.check_tensor(tensor, group.device)
    made, mine = call("gather", tensor, root=root), layout.dense(tensor)
    if group.backend.rank != root:
        return Plan(made, Step(lambda deadline: group.backend.gather(None, mine, root, deadline=deadline)))
    targets = group.check_targets(outputs, "output_tensor_list")
    check_same(targets[root], tensor, f"output_tensor_list[{root}]")
    buffers = fill(group, targets)

    def begin(deadline: float) -> Ticket:
        return group.backend.gather(buffers, mine, root, deadline=deadline)

    return Plan(made, Step(begin, targets, buffers))


def scatter(group: Group, output: Tensor, inputs: Sequence[Tensor] | None, root: int) -> Plan:
    check_root(group.backend, root)
    group.check_target(output)
    parts = None
    if group.backend.rank == root:
        sources = group.check_sources(inputs, "input_tensor_list")
        check_same(output, sources[root], "output_tensor")
        parts = [layout.dense(source) for source in sources]
    (buffer,) = fill(group, [output])

    def begin(deadline: float) -> Ticket:
        return group.backend.scatter(buffer, parts, root, deadline=deadline)

    return Plan(call("scatter", output, root=root), Step(begin, [output], [buffer]))


def barrier(group: Group) -> Plan:
    """The exchange of the fingerprints is a barrier already."""

    def begin(deadline: float) -> Ticket | None:
        return group.backend.barrier(deadline=deadline) if group.inline else None

    return Plan(call("barrier"), Step(begin))
