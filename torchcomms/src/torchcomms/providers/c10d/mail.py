"""Messages between ranks on a device: matched by peer and tag on the host, moved by the library.

A library knows no tags: it pairs the messages of two ranks in the order in which each posts them, and waits on the
device for a partner that may never come. So a send goes out at once, with its head beside it on the control channel,
and the receiver has the library receive when the head is here: into the tensor of the receive that it is for, or into
memory of its own until one is posted. Another length is found before anything is received.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from torchcomms.backend import P2P
from torchcomms.errors import CommsError, CommsTimeout
from torchcomms.providers.c10d.landing import Box, Landing
from torchcomms.providers.c10d.library import Library, as_bytes
from torchcomms.providers.c10d.route import ANSWER, ASK, MESSAGE, Head, Route
from torchcomms.providers.c10d.streams import Flight, Streams
from torchcomms.providers.c10d.watch import Watch
from torchcomms.providers.tcp import TcpBackend

EAGER, IDLE = 0.5e-3, 20e-3  # seconds between two looks of the thread, while receives wait and else
MANY = 64  # ranks from which the thread looks less often, as each look costs more
PATIENCE = 0.3  # seconds that a rank may take to say how far it is


class Mail:
    """The messages of one rank. Whoever waits for one moves all of them on; a thread does when nobody waits.

    Without it a sender would wait for as long as this rank computes.
    """

    def __init__(self, library: Library, control: TcpBackend, streams: Streams, watch: Watch) -> None:
        self._library, self._streams, self._watch, self._timeout = library, streams, watch, control.timeout
        self._lock = threading.RLock()
        self._own = Box()
        self._routes = {peer: Route(control, peer) for peer in range(control.size) if peer != control.rank}
        self._idle = IDLE * max(1.0, control.size / MANY)
        self._thread = threading.Thread(target=self._work, name="mail", daemon=True)
        self._thread.start()

    def post(self, message: P2P) -> Flight:
        """Start one message."""
        with self._lock:
            route = self._routes.get(message.peer)
            if message.kind == "send":
                return self._keep(message) if route is None else self._send(message, route)
            landing = Landing(message, self._streams, self._until)
            (self._own if route is None else route.box).expect(landing)
            return landing

    def _send(self, message: P2P, route: Route) -> Flight:
        length = message.tensor.nbytes
        route.tell(Head(MESSAGE, message.tag, length))
        return self._library.send(as_bytes(message.tensor), message.peer) if length else self._streams.mark()

    def _keep(self, message: P2P) -> Flight:
        """Send to oneself: copied at once, in the order of the stream."""
        data = as_bytes(message.tensor)

        def copy(target: Tensor) -> Flight:
            target.copy_(data)
            return self._streams.mark()

        self._own.arrive(message.tag, data.nbytes, self._blank, copy)
        return self._streams.mark()

    def advance(self) -> None:
        """Have the library receive every message whose head is here, and answer questions."""
        with self._lock:
            for route in self._routes.values():
                try:
                    while (head := route.next()) is not None:
                        self._take(route, head)
                except CommsError as error:
                    route.box.fail(error)
                    self._watch.leaves(route.peer)

    def _take(self, route: Route, head: Head) -> None:
        if head.kind == MESSAGE:
            with self._streams.aside():
                route.box.arrive(head.number, head.length, self._blank, partial(self._receive, route.peer))
        elif head.kind == ASK:
            route.tell(Head(ANSWER, self._library.begun))
        else:
            route.begun = head.number

    def _receive(self, peer: int, target: Tensor) -> Flight:
        return self._library.recv(target, peer) if target.nbytes else self._streams.mark()

    def _blank(self, length: int) -> Tensor:
        return torch.empty(length, dtype=torch.uint8, device=self._streams.device)

    def missing(self, place: int) -> frozenset[int]:
        """The ranks that have not begun the collective at this place of the program, or do not say so."""
        with self._lock:
            for route in self._routes.values():
                route.begun = None
                route.tell(Head(ASK))
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and any(route.begun is None for route in self._routes.values()):
            self.advance()
            self._watch.sleep(EAGER)
        return frozenset(route.peer for route in self._routes.values() if (route.begun or 0) < place)

    def _until(self, started: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._timeout
        while not started():
            self._watch.check()
            if time.monotonic() >= deadline:
                raise CommsTimeout("the message that the stream is to wait for was not sent in time")
            self.advance()
            if not started():
                self._watch.sleep(EAGER)

    def _work(self) -> None:
        """The body of the thread."""
        while not self._watch.ended:
            self.advance()
            eager = any(route.box.waiting for route in self._routes.values())
            self._watch.sleep(EAGER if eager else self._idle)

    def close(self) -> None:
        """End the thread; the watch has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join()
