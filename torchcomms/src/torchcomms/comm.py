"""`TorchComm`: the communicator, which makes every backend agree on layouts, dtypes, checks, timeouts and errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from torchcomms import collective, fingerprint, layout
from torchcomms.algorithms import reduction
from torchcomms.algorithms.messages import check_list, check_root, check_same
from torchcomms.algorithms.schedule import Schedule, Sequencer
from torchcomms.backend import P2P, Backend, Options, ReduceOp, Store, Ticket
from torchcomms.bootstrap import meeting_place
from torchcomms.collective import Plan, in_place, is_short, to_fill
from torchcomms.discovery import find
from torchcomms.errors import CommsAborted, CommsClosed, CommsError, PeerFailed
from torchcomms.fingerprint import Call
from torchcomms.work import Received, Work

DEFAULT_TIMEOUT = timedelta(seconds=60)


def new_comm(
    backend: str,
    device: torch.device | str,
    *,
    name: str,
    store: Store | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
    rank: int | None = None,
    size: int | None = None,
    options: Options | None = None,
) -> TorchComm:
    """Open a communicator of all ranks; returns when all have come.

    Rank, size and meeting place come from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT unless given. Ranks that pass
    one `name` meet; `timeout` bounds this call and, by default, every operation.
    """
    device = torch.device(device)
    rank, size, store = meeting_place(name, store, rank, size, timeout)
    opened = find(backend).open(
        rank=rank, size=size, store=store, device=device.type, timeout=timeout.total_seconds(), options=options
    )
    return TorchComm(opened, device, name)


class TorchComm:
    """A group of ranks and the operations among them.

    Tensors may have any strides and, for moving, any dtype; only their own elements are written. Operations block
    unless `async_op`; each returns a `Work`. Collectives are called in the same order on every rank: a call that
    differs raises `CollectiveMismatch` on all. After an error other than a timeout the communicator is of no more use.
    A context manager: leaving it calls `finalize`.
    """

    def __init__(self, backend: Backend, device: torch.device, name: str) -> None:
        self._backend, self._device, self._name = backend, device, name
        self._sequencer = Sequencer()
        self._order = threading.Lock()
        self._calls = 0
        self._failure: CommsError | None = None

    def get_rank(self) -> int:
        """This rank, from 0."""
        return self._backend.rank

    def get_size(self) -> int:
        """How many ranks there are."""
        return self._backend.size

    def get_backend(self) -> str:
        """The backend's name."""
        return self._backend.name

    def get_device(self) -> torch.device:
        """Where the tensors live."""
        return self._device

    def get_name(self) -> str:
        """The name given to `new_comm`."""
        return self._name

    def send(self, tensor: Tensor, dst: int, async_op: bool = False, *, tag: int = 0) -> Work:
        """Send `tensor` to rank `dst`, which receives one of the same count and dtype."""
        layout.check_tensor(tensor, self._device)
        self._check_usable()
        return self._finish(self._beside(self._backend.post([P2P("send", layout.dense(tensor), dst, tag)])), async_op)

    def recv(self, tensor: Tensor, src: int, async_op: bool = False, *, tag: int = 0) -> Work:
        """Fill `tensor` with the next message of rank `src`."""
        self._check_target(tensor)
        self._check_usable()
        buffer = layout.blank(tensor)
        ticket = Received(self._backend.post([P2P("recv", buffer, src, tag)]), tensor, buffer)
        return self._finish(self._beside(ticket), async_op)

    def broadcast(self, tensor: Tensor, root: int, async_op: bool = False) -> Work:
        """Copy `tensor` of rank `root` to every rank's."""
        check_root(self._backend, root)
        sending = root == self.get_rank()
        layout.check_tensor(tensor, self._device) if sending else self._check_target(tensor)
        short = is_short([tensor])
        buffer = layout.dense(tensor) if sending else to_fill(tensor, short)
        call = self._call("broadcast", tensor, count=tensor.numel(), root=root)
        targets, results = ([], []) if sending else ([tensor], [buffer])
        return self._run(Plan(call, lambda: self._backend.broadcast(buffer, root), targets, results), async_op)

    def all_reduce(self, tensor: Tensor, op: ReduceOp, async_op: bool = False) -> Work:
        """Replace `tensor` by the reduction over all ranks, on every rank."""
        self._check_target(tensor)
        reduction.check(op, tensor.dtype)
        short = is_short([tensor])
        buffer = in_place(tensor, short)
        call = self._call("all_reduce", tensor, count=tensor.numel(), op=op)
        return self._run(Plan(call, lambda: self._backend.all_reduce(buffer, op), [tensor], [buffer]), async_op)

    def reduce(self, tensor: Tensor, root: int, op: ReduceOp, async_op: bool = False) -> Work:
        """Replace `tensor` of rank `root` by the reduction over all ranks; the others' stay as they are."""
        check_root(self._backend, root)
        self._check_target(tensor)
        reduction.check(op, tensor.dtype)
        short = is_short([tensor])
        buffer = in_place(tensor, short)
        call = self._call("reduce", tensor, count=tensor.numel(), root=root, op=op)
        targets, results = ([tensor], [buffer]) if root == self.get_rank() else ([], [])
        return self._run(Plan(call, lambda: self._backend.reduce(buffer, root, op), targets, results), async_op)

    def all_gather(self, tensors: Sequence[Tensor], tensor: Tensor, async_op: bool = False) -> Work:
        """Copy rank r's `tensor` into `tensors[r]` on every rank; counts may differ by rank."""
        targets = self._check_targets(tensors, "tensors")
        layout.check_tensor(tensor, self._device)
        check_same(targets[self.get_rank()], tensor, f"tensors[{self.get_rank()}]")
        short = is_short(targets)
        buffers, mine = [to_fill(target, short) for target in targets], layout.dense(tensor)
        call = self._call("all_gather", tensor, sizes=targets)
        return self._run(Plan(call, lambda: self._backend.all_gather(buffers, mine), targets, buffers), async_op)

    def reduce_scatter(self, output: Tensor, inputs: Sequence[Tensor], op: ReduceOp, async_op: bool = False) -> Work:
        """Reduce `inputs[r]` of all ranks into `output` of rank r; counts may differ by r."""
        sources = self._check_inputs(inputs)
        self._check_target(output)
        check_same(output, sources[self.get_rank()], "output")
        reduction.check(op, output.dtype)
        short = is_short(sources)
        buffer, parts = to_fill(output, short), [layout.dense(source) for source in sources]
        call = self._call("reduce_scatter", output, sizes=sources, op=op)

        def begin() -> Ticket:
            return self._backend.reduce_scatter(buffer, parts, op)

        return self._run(Plan(call, begin, [output], [buffer]), async_op)

    def all_to_all(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], async_op: bool = False) -> Work:
        """Copy `inputs[r]` of rank s into `outputs[s]` of rank r; counts may differ for every pair."""
        targets, sources = self._check_targets(outputs, "outputs"), self._check_inputs(inputs)
        check_same(targets[self.get_rank()], sources[self.get_rank()], f"outputs[{self.get_rank()}]")
        short = is_short([*targets, *sources])
        buffers, parts = [to_fill(target, short) for target in targets], [layout.dense(source) for source in sources]
        call = self._call("all_to_all", sources[0])
        return self._run(Plan(call, lambda: self._backend.all_to_all(buffers, parts), targets, buffers), async_op)

    def barrier(self, async_op: bool = False) -> Work:
        """Complete on no rank before all have called it: the exchange of the fingerprints is the barrier."""
        return self._run(Plan(self._call("barrier"), lambda: None, [], []), async_op)

    def abort(self, reason: str = "abort() was called") -> None:
        """End every wait of this communicator on this rank, in all threads, with `CommsAborted`."""
        self._backend.abort(reason)

    def finalize(self) -> None:
        """Close the communicator and release all it holds. May be called again."""
        self._failure = CommsClosed(f"communicator {self._name!r} is finalized; make a new one")
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finalize()

    def _call(
        self,
        operation: str,
        tensor: Tensor | None = None,
        *,
        count: int = -1,
        sizes: Sequence[Tensor] = (),
        root: int = -1,
        op: ReduceOp | None = None,
    ) -> Callable[[int], Call]:
        dtype = "" if tensor is None else str(tensor.dtype)
        lengths = fingerprint.checksum(tuple(one.numel() for one in sizes)) if sizes else 0
        kind, site = "" if op is None else op.kind, fingerprint.call_site()
        return lambda sequence: Call(operation, sequence, dtype, count, lengths, root, kind, site)

    def _run(self, plan: Plan, async_op: bool) -> Work:
        deadline = time.monotonic() + self._backend.timeout
        with self._order:
            self._check_usable()
            self._calls += 1
            call = plan.call(self._calls)
            ticket = self._sequencer.start(call, self._fenced(collective.run(self._backend, plan, call)), deadline)
        return self._finish(Work(ticket, deadline), async_op)

    def _fenced(self, schedule: Schedule) -> Schedule:
        try:
            self._check_usable()
            yield from schedule
        except CommsError as error:
            self._failure = self._failure or error
            raise

    def _check_usable(self) -> None:
        failure = self._failure
        if isinstance(failure, PeerFailed):
            raise PeerFailed(f"communicator {self._name!r} has lost ranks: {failure}", ranks=failure.ranks) from failure
        if isinstance(failure, CommsClosed):
            raise CommsClosed(str(failure))
        if failure is not None:
            reason = f"communicator {self._name!r} is of no more use after an error: {failure}"
            raise CommsAborted(reason, reason=str(failure)) from failure

    def _beside(self, ticket: Ticket) -> Work:
        return Work(ticket, time.monotonic() + self._backend.timeout, self._sequencer.wait_beside)

    def _finish(self, work: Work, async_op: bool) -> Work:
        if not async_op:
            work.wait()
        return work

    def _check_target(self, tensor: Tensor) -> None:
        layout.check_tensor(tensor, self._device)
        layout.check_target(tensor)

    def _check_targets(self, tensors: Sequence[Tensor], name: str) -> Sequence[Tensor]:
        for tensor in check_list(self._backend, tensors, name):
            self._check_target(tensor)
        return tensors

    def _check_inputs(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        for tensor in check_list(self._backend, tensors, "inputs"):
            layout.check_tensor(tensor, self._device)
        return tensors
