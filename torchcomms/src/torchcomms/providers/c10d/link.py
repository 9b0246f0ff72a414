"""One peer over gloo: a thread that receives whatever it sends, and one that waits until what goes to it is written.

Threads, because gloo can neither be asked whether a message is through, nor stop waiting without closing the group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from queue import SimpleQueue
from typing import Protocol

import torch
from torch import Tensor

from torchcomms.providers.c10d import frame
from torchcomms.providers.inbox import Inbox, Message

HEADS, BODIES, NOTHING = range(3)  # gloo's tags: frames, long payloads, and one on which nothing is ever sent
FOREVER = timedelta(days=365)


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
    """What gloo reads from until `work` is done, and the message that is complete then."""

    work: Work
    tensor: Tensor
    message: Message | None

    def wait(self) -> bool:
        """Block until it is written; False if the connection ended before."""
        try:
            return self.work.wait(FOREVER)
        except RuntimeError:  # as gloo reports it
            return False


class Link:
    """The messages from and to one peer. Sends are made under the engine's lock, so that frames keep their order."""

    def __init__(self, group: Group, peer: int) -> None:
        self.peer, self._group = peer, group
        self.inbox = Inbox()
        self.seen = False  # the peer has read our goodbye
        self._frame = bytearray(frame.LONGEST)
        self._sendings: SimpleQueue[Sending | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, read: Callable[[Link], None], confirm: Callable[[Link], None]) -> None:
        """Run `read` and `confirm` in threads of this link."""
        for name, target in (("read", read), ("sent", confirm)):
            thread = threading.Thread(target=target, args=(self,), name=f"gloo-{name}-{self.peer}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def send(self, message: Message) -> None:
        """Start to send; a message whose payload rides in the frame is complete at once."""
        riding = message.view.nbytes <= frame.ROOM
        self._start(frame.pack(frame.DATA, message.tag, message.view), HEADS, None)
        if riding:
            message.complete()
        else:
            self._start(torch.frombuffer(message.view, dtype=torch.uint8), BODIES, message)

    def tell(self, kind: int) -> None:
        """Send a frame without payload."""
        self._start(frame.pack(kind), HEADS, None)

    def _start(self, tensor: Tensor, slot: int, message: Message | None) -> None:
        self._sendings.put(Sending(self._group.send([tensor], self.peer, slot), tensor, message))

    def oldest(self) -> Sending | None:
        """Block until there is a sending and return the oldest; None at the end."""
        return self._sendings.get()

    def next_frame(self) -> memoryview:
        """Block until the next frame is here; it is valid until the next call. Raises RuntimeError as gloo does."""
        self._receive(memoryview(self._frame), HEADS)
        return memoryview(self._frame)

    def fill(self, target: memoryview) -> None:
        """Block until the payload that the last frame announced is in `target`."""
        self._receive(target, BODIES)

    def _receive(self, target: memoryview, slot: int) -> None:
        self._group.recv([torch.frombuffer(target, dtype=torch.uint8)], self.peer, slot).wait(FOREVER)

    def join(self) -> None:
        """Wait for the threads, whose group is closed."""
        self._sendings.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
