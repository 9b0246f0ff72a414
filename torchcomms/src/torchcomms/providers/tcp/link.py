"""One peer's connection: what is still to be sent, and what its stream is being cut into."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable
from itertools import islice

from torchcomms.errors import CommsError, EarlyOverflow
from torchcomms.providers.inbox import Allowance, Inbox, Message
from torchcomms.providers.tcp import wire

BUFFERS = 64  # buffers handed to the kernel in one call
TURNS = 8  # reads from one peer before the others get their turn


class Link:
    """A non-blocking socket with its queue of sends and its frame reader."""

    __slots__ = ("_sends", "broken", "inbox", "overflow", "peer", "reader", "socket", "watched")

    def __init__(self, peer: int, connection: socket.socket, allowance: Allowance) -> None:
        connection.setblocking(False)
        self.peer, self.socket = peer, connection
        self.inbox = Inbox(peer, allowance)
        self.reader = wire.FrameReader(self.inbox)
        self.broken = self.watched = False  # watched: for room to send
        self.overflow: EarlyOverflow | None = None  # after it the stream cannot be read on
        self._sends: deque[tuple[memoryview, Message | None]] = deque()

    @property
    def sending(self) -> bool:
        """Whether something is left to send."""
        return bool(self._sends)

    def send(self, message: Message) -> None:
        """Queue a message; `push` sends it."""
        header = memoryview(wire.data_header(message.tag, message.view.nbytes))
        if message.view.nbytes:
            self._sends.append((header, None))
            self._sends.append((message.view, message))
        else:
            self._sends.append((header, message))

    def push(self) -> None:
        """Send as much as the kernel takes."""
        try:
            while self._sends:
                self._sent(self.socket.sendmsg([view for view, _ in islice(self._sends, BUFFERS)]))
        except BlockingIOError:
            return
        except OSError:
            # What the peer sent before it went, a goodbye perhaps, is still to be read.
            self._sends.clear()
            self.pull(turns=1 << 30)
            self.broken = True

    def _sent(self, count: int) -> None:
        while self._sends:
            view, message = self._sends[0]
            if count < view.nbytes:
                self._sends[0] = (view[count:], message)
                return
            count -= view.nbytes
            self._sends.popleft()
            if message is not None:
                message.complete()

    def pull(self, turns: int = TURNS) -> None:
        """Read what is there, for at most `turns` reads."""
        try:
            if self.reader.stalled:
                self.reader.resume()
            for _ in range(turns):
                space = self.reader.space()
                count = self.socket.recv_into(space)
                if not count:
                    self.broken = True
                    return
                self.reader.advance(count)
                if count < space.nbytes or self.reader.stalled:
                    return
        except BlockingIOError:
            return
        except EarlyOverflow as error:
            self.overflow = error
        except OSError:
            self.broken = True

    def fail(self, error: CommsError) -> None:
        """End every message that waits for this peer."""
        for _, message in self._sends:
            if message is not None:
                message.batch.fail(error)
        self._sends.clear()
        self.inbox.fail(error)

    def leave(self, lost: Iterable[int]) -> None:
        """Say goodbye if no frame is half sent, and close without losing what the peer has not read yet."""
        try:
            if not self._sends:
                self.socket.sendall(wire.goodbye(lost))
                self.socket.shutdown(socket.SHUT_WR)
                # Unread input would turn the close into a reset, which overtakes the goodbye.
                while self.socket.recv(1 << 16):
                    continue
        except OSError:
            pass
        self.socket.close()
