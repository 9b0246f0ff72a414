"""`CommsGroup`: the operations of a process group, carried out by the communicator of the tensors' device.

Tensors of devices that torch moves go to the backend that is registered with the group for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from torchcomms.distributed.group import Identity
from torchcomms.distributed.reading import given, is_async, reduction, root_of, single
from torchcomms.distributed.work import Done
from torchcomms.errors import InvalidCall
from torchcomms.work import Work

Lists = Sequence[Sequence[Tensor]]
Tensors = Tensor | Sequence[Tensor]


class CommsGroup(Identity):
    """A process group whose operations a `TorchComm` carries out.

    The arguments are those of torch.distributed, in each of the forms that it has for an operation; the tensors belong
    to the group until the returned work is complete. Errors of this package are raised as they are.
    """

    def allreduce(self, tensors: Tensors, opts: object = None, timeout: timedelta | None = None) -> dist.Work:
        tensor = single(tensors)
        comm = self._comm_of(tensor)
        if comm is None:
            return self._pass_on(tensor, "allreduce", tensors, *given(opts))
        op = reduction(opts)
        return self._run(lambda later: [comm.all_reduce(tensor, op, later)], [tensor], opts)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: object = None) -> dist.Work:
        comm = self._comm_of(tensors[0])
        if comm is None:
            return self._pass_on(tensors[0], "allreduce_coalesced", tensors, *given(opts))
        op = reduction(opts)
        return self._run(lambda later: [comm.all_reduce(one, op, later) for one in tensors], list(tensors), opts)

    def broadcast(self, tensors: Tensors, opts: object = None, timeout: timedelta | None = None) -> dist.Work:
        tensor = single(tensors)
        comm = self._comm_of(tensor)
        if comm is None:
            return self._pass_on(tensor, "broadcast", tensors, *given(opts))
        root = root_of(opts)
        return self._run(lambda later: [comm.broadcast(tensor, root, later)], [tensor], opts)

    def reduce(
        self, tensors: Tensors, opts: object = None, op: object = None, timeout: timedelta | None = None
    ) -> dist.Work:
        tensor = single(tensors)
        comm = self._comm_of(tensor)
        if comm is None:
            return self._pass_on(tensor, "reduce", tensors, *given(opts))
        root, kind = root_of(opts), reduction(op if isinstance(opts, int) else opts)
        return self._run(lambda later: [comm.reduce(tensor, root, kind, later)], [tensor], opts)

    def allgather(
        self, outputs: Lists | Sequence[Tensor], inputs: Tensors, opts: object = None, timeout: timedelta | None = None
    ) -> dist.Work:
        tensor = single(inputs)
        comm = self._comm_of(tensor)
        if comm is None:
            return self._pass_on(tensor, "allgather", outputs, inputs, *given(opts))
        targets = _list(outputs)
        return self._run(lambda later: [comm.all_gather(targets, tensor, later)], targets, opts)

    def allgather_coalesced(self, outputs: Lists, inputs: Sequence[Tensor], opts: object = None) -> dist.Work:
        """`outputs[r][i]` takes `inputs[i]` of rank r."""
        comm = self._comm_of(inputs[0])
        if comm is None:
            return self._pass_on(inputs[0], "allgather_coalesced", outputs, inputs, *given(opts))
        columns = [list(column) for column in zip(*outputs, strict=True)]

        def start(later: bool) -> list[Work]:
            return [comm.all_gather(column, one, later) for column, one in zip(columns, inputs, strict=True)]

        return self._run(start, [one for row in outputs for one in row], opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: object = None) -> dist.Work:
        comm = self._comm_of(input)
        if comm is None:
            return self._pass_on(input, "_allgather_base", output, input, *given(opts))
        return self._run(lambda later: [comm.all_gather_single(output, input, later)], [output], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: object = None
    ) -> dist.Work:
        comm = self._comm_of(inputs[0])
        if comm is None:
            return self._pass_each("_allgather_base", outputs, inputs, opts)
        pairs = list(zip(outputs, inputs, strict=True))
        return self._run(lambda later: [comm.all_gather_single(*pair, later) for pair in pairs], list(outputs), opts)

    def reduce_scatter(
        self, outputs: Tensors, inputs: Lists | Sequence[Tensor], opts: object = None, timeout: timedelta | None = None
    ) -> dist.Work:
        output = single(outputs)
        comm = self._comm_of(output)
        if comm is None:
            return self._pass_on(output, "reduce_scatter", outputs, inputs, *given(opts))
        sources, op = _list(inputs), reduction(opts)
        return self._run(lambda later: [comm.reduce_scatter(output, sources, op, later)], [output], opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: object = None) -> dist.Work:
        comm = self._comm_of(input)
        if comm is None:
            return self._pass_on(input, "_reduce_scatter_base", output, input, *given(opts))
        op = reduction(opts)
        return self._run(lambda later: [comm.reduce_scatter_single(output, input, op, later)], [output], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: object = None
    ) -> dist.Work:
        comm = self._comm_of(inputs[0])
        if comm is None:
            return self._pass_each("_reduce_scatter_base", outputs, inputs, opts)
        op, pairs = reduction(opts), list(zip(outputs, inputs, strict=True))
        return self._run(
            lambda later: [comm.reduce_scatter_single(*pair, op, later) for pair in pairs], list(outputs), opts
        )

    def alltoall(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: object = None) -> dist.Work:
        comm = self._comm_of(inputs[0])
        if comm is None:
            return self._pass_on(inputs[0], "alltoall", outputs, inputs, *given(opts))
        return self._run(lambda later: [comm.all_to_all(outputs, inputs, later)], list(outputs), opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_sizes: Sequence[int] = (),
        input_sizes: Sequence[int] = (),
        opts: object = None,
    ) -> dist.Work:
        comm = self._comm_of(input)
        if comm is None:
            return self._pass_on(
                input, "alltoall_base", output, input, list(output_sizes), list(input_sizes), *given(opts)
            )
        rows = output_sizes, input_sizes
        return self._run(lambda later: [comm.all_to_all_v_single(output, input, *rows, later)], [output], opts)

    def gather(self, outputs: Lists, inputs: Tensors, opts: object = None) -> dist.Work:
        tensor = single(inputs)
        comm = self._comm_of(tensor)
        if comm is None:
            return self._pass_on(tensor, "gather", outputs, inputs, *given(opts))
        root = root_of(opts)
        targets = _list(outputs) if root == self.rank() else []
        return self._run(lambda later: [comm.gather(targets, tensor, root, later)], targets, opts)

    def scatter(self, outputs: Tensors, inputs: Lists, opts: object = None) -> dist.Work:
        output = single(outputs)
        comm = self._comm_of(output)
        if comm is None:
            return self._pass_on(output, "scatter", outputs, inputs, *given(opts))
        root = root_of(opts)
        sources = _list(inputs) if root == self.rank() else []
        return self._run(lambda later: [comm.scatter(output, sources, root, later)], [output], opts)

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        tensor = single(tensors)
        comm = self._comm_of(tensor)
        if comm is None:
            return self._pass_on(tensor, "send", tensors, dst, tag)
        return self._pending([comm.send(tensor, dst, True, tag=tag)], [tensor])

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        tensor = single(tensors)
        comm = self._comm_of(tensor)
        if comm is None:
            return self._pass_on(tensor, "recv", tensors, src, tag)
        return self._pending([comm.recv(tensor, src, True, tag=tag)], [tensor], src)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        tensor = single(tensors)
        if self._comm_of(tensor) is None:
            return self._pass_on(tensor, "recv_anysource", tensors, tag)
        raise InvalidCall(
            "recv from any source: a receive of this group names its sender, so that it never waits for a dead rank; "
            "pass src=, or let the receiver learn the sender by an all_gather"
        )

    def barrier(self, opts: object = None, timeout: timedelta | None = None) -> dist.Work:
        device = getattr(opts, "device", None)
        comm = self._comms.get("cpu" if device is None else device.type) or next(iter(self._comms.values()))
        return self._run(lambda later: [comm.barrier(later)], [], opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier; the ranks that do not come within `timeout` are all named in the `CommsTimeout`, on every rank."""
        comm = next(iter(self._comms.values()))
        comm.barrier(True).wait(None if timeout is None else timeout.total_seconds())

    # Under these names torch calls some operations from C++, or did before 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _pass_each(
        self, operation: str, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: object
    ) -> dist.Work:
        """Let torch's backend carry an operation out for each pair; the last work is that of all."""
        pairs = zip(outputs, inputs, strict=True)
        *works, last = [self._pass_on(source, operation, output, source, *given(opts)) for output, source in pairs]
        for work in works:
            work.wait()  # on an accelerator it orders the stream and does not block
        return last

    def _run(self, start: Callable[[bool], Sequence[Work]], result: list[Tensor], opts: object) -> dist.Work:
        """Start an operation, or carry it out if the caller is going to wait for it anyway."""
        if not is_async(opts) and self._coalesced is None:
            start(False)
            return Done(result)
        return self._pending(start(True), result)


def _list(tensors: Any) -> list[Tensor]:
    """The list for one device, of an argument that may be a list of such lists."""
    if not tensors or isinstance(tensors[0], Tensor):
        return list(tensors)
    if len(tensors) != 1:
        raise InvalidCall(f"lists for {len(tensors)} devices: an operation takes those of one, in a list")
    return list(tensors[0])
