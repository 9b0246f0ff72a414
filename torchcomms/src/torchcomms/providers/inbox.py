"""Messages in flight and how arrivals meet receives: first in, first out per tag. No I/O.

An arrival that nobody expects yet is kept in memory of its own until a receive asks for it.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from torchcomms.errors import (
    CommsError,
    EarlyOverflow,
    InvalidCall,
    MessageMismatch,
    PeerFailed,
    UnsupportedTensor,
    name_ranks,
)

if TYPE_CHECKING:
    from torch import Tensor

    from torchcomms.backend import P2P


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a dense CPU tensor, without a copy; the tensor must outlive them."""
    if not tensor.is_cpu or not tensor.is_contiguous():
        layout = "contiguous" if tensor.is_contiguous() else "strided"
        raise UnsupportedTensor(
            f"a {layout} tensor on {tensor.device} cannot be moved: pass a contiguous CPU tensor, "
            "or call the communicator, which packs strided ones"
        )
    size = tensor.nbytes
    if not size:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


class Message:
    """One send or receive of a batch."""

    __slots__ = ("batch", "done", "peer", "sending", "tag", "tensor", "view")

    def __init__(self, batch: Batch, request: P2P) -> None:
        self.batch, self.peer, self.tag = batch, request.peer, request.tag
        self.sending = request.kind == "send"
        self.tensor = request.tensor
        self.view = memory_of(request.tensor)
        self.done = False

    def complete(self) -> None:
        """This message is through; its tensor is the caller's again."""
        self.done = True
        self.batch.pending -= 1

    def mismatch(self, actual: int) -> None:
        """What arrived has another length."""
        expected = self.view.nbytes
        self.batch.fail(
            MessageMismatch(
                f"rank {self.peer} sent {actual} bytes on tag {self.tag} where {expected} were expected; "
                "send and receive tensors of one length",
                peer=self.peer,
                tag=self.tag,
                expected=expected,
                actual=actual,
            )
        )


class Batch:
    """The messages of one post: settled when all are through or one has failed."""

    __slots__ = ("error", "messages", "pending")

    def __init__(self, requests: Sequence[P2P], size: int) -> None:
        for request in requests:
            if not 0 <= request.peer < size:
                raise InvalidCall(f"peer {request.peer} is not a rank of this group of {size}; pass 0 to {size - 1}")
        self.messages = [Message(self, request) for request in requests]
        self.pending = len(self.messages)
        self.error: CommsError | None = None

    @property
    def settled(self) -> bool:
        return not self.pending or self.error is not None

    def fail(self, error: CommsError) -> None:
        """End the batch with its first error."""
        if self.pending and self.error is None:
            self.error = error

    def missing(self) -> frozenset[int]:
        """The peers of messages that are not through."""
        return frozenset(message.peer for message in self.messages if not message.done)


def outcome(batch: Batch, failure: CommsError | None, lost: AbstractSet[int]) -> bool:
    """Whether the batch is complete; raises its error, the group's `failure`, or that ranks are `lost`."""
    if batch.error is None and not batch.pending:
        return True
    # Ranks that met the death earlier close and leave: the one that died is the cause, they are not.
    if lost and (batch.error is None or isinstance(batch.error, PeerFailed)) and failure is None:
        raise PeerFailed(f"{name_ranks(lost)} died: gone without a goodbye", ranks=lost)
    if batch.error is not None:
        raise batch.error
    if failure is not None:
        raise failure
    return False


def departure(rank: int) -> PeerFailed:
    """The error for messages of a rank that closed its backend."""
    return PeerFailed(f"rank {rank} closed its backend while this rank still needed it", ranks={rank})


class Allowance:
    """How many bytes of messages may lie here before their receives are posted, over all peers of a group."""

    __slots__ = ("_limit", "_taken")

    def __init__(self, limit: float = float("inf")) -> None:
        self._limit, self._taken = limit, 0

    def take(self, length: int, peer: int, tag: int) -> None:
        """Count `length` bytes more. Raises `EarlyOverflow` beyond the limit."""
        if self._taken + length > self._limit:
            raise EarlyOverflow(
                f"{self._taken} bytes of messages lie here that no receive was posted for, and {length} more come from "
                f"rank {peer} on tag {tag}: the limit is {self._limit}. Post receives before their messages come, "
                "send less at once, or raise early_limit in the backend's options",
                peer=peer,
                limit=int(self._limit),
            )
        self._taken += length

    def give(self, length: int) -> None:
        """A receive has taken them."""
        self._taken -= length


class Arrival:
    """A message on its way in: `target` takes its bytes, `finish` hands it to the receive, now or when one comes."""

    __slots__ = ("_arrived", "_message", "target")

    def __init__(self, message: Message | None, length: int) -> None:
        self._arrived = False
        self._message = message
        fits = message is not None and message.view.nbytes == length
        self.target = message.view if message is not None and fits else memoryview(bytearray(length))
        if message is not None and not fits:
            message.mismatch(length)
            self._message = None

    def finish(self) -> None:
        """All bytes are in `target`."""
        self._arrived = True
        if self._message is not None:
            self._deliver(self._message)

    def claim(self, message: Message) -> None:
        """A receive asks for this arrival, which came or began before it."""
        if message.view.nbytes != self.target.nbytes:
            message.mismatch(self.target.nbytes)
        elif self._arrived:
            self._deliver(message)
        else:
            self._message = message

    def _deliver(self, message: Message) -> None:
        if self.target is not message.view:
            message.view[:] = self.target
        message.complete()


class Inbox:
    """The receives posted for one peer and the arrivals from it that no receive has asked for."""

    __slots__ = ("_allowance", "_early", "_expected", "_peer")

    def __init__(self, peer: int = -1, allowance: Allowance | None = None) -> None:
        self._peer, self._allowance = peer, allowance or Allowance()
        self._expected: dict[int, deque[Message]] = {}
        self._early: dict[int, deque[Arrival]] = {}

    def expect(self, message: Message) -> None:
        """Post a receive; an early arrival of its tag is taken at once."""
        early = self._early.get(message.tag)
        if early:
            arrival = early.popleft()
            self._allowance.give(arrival.target.nbytes)
            arrival.claim(message)
            if not early:
                del self._early[message.tag]
        else:
            self._expected.setdefault(message.tag, deque()).append(message)

    def expects(self, tag: int) -> bool:
        """Whether a receive of this tag is posted."""
        return tag in self._expected

    def arrive(self, tag: int, length: int) -> Arrival:
        """A message of `length` bytes begins to come in; put its bytes into `target`, then call `finish`.

        Raises `EarlyOverflow` if nobody expects it and there is no room for it.
        """
        expected = self._expected.get(tag)
        if expected:
            arrival = Arrival(expected.popleft(), length)
            if not expected:
                del self._expected[tag]
        else:
            self._allowance.take(length, self._peer, tag)
            arrival = Arrival(None, length)
            self._early.setdefault(tag, deque()).append(arrival)
        return arrival

    def deliver(self, message: Message) -> None:
        """A send whose bytes are at hand: copy them in, and the send is through."""
        arrival = self.arrive(message.tag, message.view.nbytes)
        arrival.target[:] = message.view
        arrival.finish()
        message.complete()

    def fail(self, error: CommsError) -> None:
        """End every posted receive with `error`."""
        for expected in self._expected.values():
            for message in expected:
                message.batch.fail(error)
        self._expected.clear()
