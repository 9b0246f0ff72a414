"""One peer over gloo: what goes to it, and a thread that receives whatever it sends.

A thread, because gloo cannot be asked whether a message is through, and a wait that ends by a timeout closes the group.
For the same reason nobody waits for a send: the receiver says what it has read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
from torch import Tensor

from torchcomms.providers.c10d import frame
from torchcomms.providers.inbox import Allowance, Inbox, Message

HEADS, BODIES, NOTHING = range(3)  # gloo's tags: frames, long payloads, and one on which nothing is ever sent
FOREVER = timedelta(days=365)
COPIED = 256 << 10  # bytes up to which a copy costs less than to wait for the receiver's word
UNTOLD = 32  # short frames that are read before their sender is told


class Work(Protocol):
    """What gloo returns."""

    def wait(self, timeout: timedelta, /) -> bool:
        """Block until it is done; after a timeout gloo closes every connection of the group."""


class Group(Protocol):
    """What is used of `ProcessGroupGloo`."""

    def send(self, tensors: list[Tensor], peer: int, tag: int, /) -> Work:
        """Start to send."""

    def recv(self, tensors: list[Tensor], peer: int, tag: int, /) -> Work:
        """Start to receive, at most the tensor's length."""


@dataclass(frozen=True, slots=True)
class Sending:
    """What gloo reads from, by frame `number`, and the message that is complete when that frame has been read."""

    number: int
    work: Work
    tensor: Tensor
    message: Message | None


class Link:
    """The messages from and to one peer. Sends are made under the engine's lock, so that frames keep their order."""

    def __init__(self, group: Group, peer: int, allowance: Allowance) -> None:
        self.peer, self._group = peer, group
        self.inbox = Inbox(peer, allowance)
        self.seen = False  # the peer has read our goodbye
        self._frame = memoryview(bytearray(frame.LONGEST))
        self._sendings: deque[Sending] = deque()
        self._sent = self._read = self._told = 0  # frames
        self._thread: threading.Thread | None = None

    def start(self, read: Callable[[Link], None]) -> None:
        """Run `read` in the thread of this link."""
        self._thread = threading.Thread(target=read, args=(self,), name=f"gloo-{self.peer}", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Start to send; a message that is copied is complete at once."""
        self.tell(frame.pack(frame.DATA, message.tag, message.view))
        length = message.view.nbytes
        if length > frame.ROOM:
            data = torch.frombuffer(message.view, dtype=torch.uint8)
            self._start(data.clone() if length <= COPIED else data, BODIES, None if length <= COPIED else message)
        if length <= COPIED:
            message.complete()

    def tell(self, packed: Tensor) -> None:
        """Send a frame."""
        self._sent += 1
        self._start(packed, HEADS, None)

    def _start(self, tensor: Tensor, slot: int, message: Message | None) -> None:
        work = self._group.send([tensor], self.peer, slot)
        self._sendings.append(Sending(self._sent, work, tensor, message))

    def confirm(self, count: int) -> None:
        """The peer has read `count` frames and what followed them."""
        while self._sendings and self._sendings[0].number <= count:
            message = self._sendings.popleft().message
            if message is not None:
                message.complete()

    def unconfirmed(self) -> list[Message]:
        """Messages that the peer has not read."""
        return [sending.message for sending in self._sendings if sending.message is not None]

    def next_frame(self) -> memoryview:
        """Block until the next frame is here; it is valid until the next call. Raises RuntimeError as gloo does."""
        self._receive(self._frame, HEADS)
        self._read += 1
        return self._frame

    def fill(self, target: memoryview) -> None:
        """Block until the payload that the last frame announced is in `target`."""
        self._receive(target, BODIES)

    def _receive(self, target: memoryview, slot: int) -> None:
        self._group.recv([torch.frombuffer(target, dtype=torch.uint8)], self.peer, slot).wait(FOREVER)

    def tell_read(self, *, at_once: bool) -> None:
        """Tell the peer how many frames have been read, unless it need not know yet."""
        if at_once or self._read >= self._told + UNTOLD:
            self._told = self._read
            with suppress(RuntimeError):  # the connection has ended, but what came before is still to be read
                self.tell(frame.pack(frame.READ, self._read))

    def join(self) -> None:
        """Wait for the thread, whose group is closed."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
