"""Messages between two ranks: send, recv, sendrecv, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING

from torchcomms import layout
from torchcomms.backend import P2P
from torchcomms.collective import Step
from torchcomms.comm.core import Core
from torchcomms.comm.hooking import OpName
from torchcomms.comm.options import Hints, OperationOptions
from torchcomms.work import Work

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.comm.group import Group


class P2POpType(Enum):
    """The direction of a message."""

    SEND = auto()
    RECV = auto()


@dataclass(slots=True)
class P2POp:
    """One message of a batch: `tensor` goes to or comes from rank `peer`. Tags from 0 up keep messages apart."""

    type: P2POpType
    tensor: Tensor
    peer: int
    tag: int = 0


class Messages(Core):
    """Messages between two ranks. Both sides know the length; first in, first out for each peer and tag."""

    def send(
        self,
        tensor: Tensor,
        dst: int,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
        *,
        tag: int = 0,
    ) -> Work:
        """Send `tensor` to rank `dst`, which receives one of the same count and dtype."""
        ops = [P2POp(P2POpType.SEND, tensor, dst, tag)]
        return self._post(OpName.send, ops, async_op, timeout, tensor=tensor, peer=dst)

    def recv(
        self,
        tensor: Tensor,
        src: int,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
        *,
        tag: int = 0,
    ) -> Work:
        """Fill `tensor` with the next message of rank `src`."""
        ops = [P2POp(P2POpType.RECV, tensor, src, tag)]
        return self._post(OpName.recv, ops, async_op, timeout, tensor=tensor, peer=src)

    def sendrecv(
        self,
        input: Tensor,
        dst: int,
        output: Tensor,
        src: int,
        async_op: bool = False,
        hints: Hints | None = None,
        timeout: timedelta | None = None,
        *,
        tag: int = 0,
    ) -> Work:
        """Send `input` to rank `dst` and fill `output` with the next message of rank `src`, both at once."""
        ops = [P2POp(P2POpType.SEND, input, dst, tag), P2POp(P2POpType.RECV, output, src, tag)]
        return self._post(OpName.sendrecv, ops, async_op, timeout, input=input, output=output, peer=dst)

    def batch_op_create(self) -> BatchSendRecv:
        """An empty batch of messages."""
        return BatchSendRecv(self)

    def _post(
        self, name: OpName, ops: Sequence[P2POp], async_op: bool, timeout: timedelta | None, **facts: object
    ) -> Work:
        group = self._ready()
        batch, step = _prepare(group, ops)
        return self._exchange(name, group, batch, step, async_op, timeout, **facts)


class BatchSendRecv:
    """Messages that start together, so that no order among them can deadlock."""

    def __init__(self, comm: Messages) -> None:
        self._comm = comm
        self.ops: list[P2POp] = []

    def send(self, tensor: Tensor, dst: int, *, tag: int = 0) -> None:
        """Add a message to rank `dst`."""
        self.ops.append(P2POp(P2POpType.SEND, tensor, dst, tag))

    def recv(self, tensor: Tensor, src: int, *, tag: int = 0) -> None:
        """Add a message from rank `src`."""
        self.ops.append(P2POp(P2POpType.RECV, tensor, src, tag))

    def issue(self, async_op: bool = False, options: OperationOptions | None = None) -> Work:
        """Start the messages added so far; the batch is empty afterwards."""
        ops, self.ops = self.ops, []
        sent = [op.tensor for op in ops if op.type is P2POpType.SEND]
        received = [op.tensor for op in ops if op.type is P2POpType.RECV]
        timeout = None if options is None else options.timeout
        return self._comm._post(OpName.batch, ops, async_op, timeout, input=sent, output=received)


def _prepare(group: Group, ops: Sequence[P2POp]) -> tuple[list[P2P], Step]:
    batch, targets, buffers = [], [], []
    for op in ops:
        if op.type is P2POpType.SEND:
            layout.check_tensor(op.tensor, group.device)
            batch.append(P2P("send", layout.dense(op.tensor), op.peer, op.tag))
        else:
            group.check_target(op.tensor)
            buffer = layout.blank(op.tensor)
            batch.append(P2P("recv", buffer, op.peer, op.tag))
            targets.append(op.tensor)
            buffers.append(buffer)
    return batch, Step(lambda deadline: None, targets, buffers)
