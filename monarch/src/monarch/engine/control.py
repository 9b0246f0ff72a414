"""The control thread of an actor process: answers while the actor is busy, and ends the process when told to."""

from __future__ import annotations

import os
import pickle
import queue
import select
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

from monarch.engine.server import Server

MESSAGE = 1 << 16
SHORTLY = 0.001


class Control:
    """Serves the control socket in a thread of its own; `actors` takes the socket of the process's first actor."""

    def __init__(self, sock: socket.socket, server: Server, actors: queue.SimpleQueue[socket.socket | None]) -> None:
        self._sock, self._server, self._actors = sock, server, actors
        self._first = True

    def start(self) -> None:
        threading.Thread(target=self._run, name="monarch-control", daemon=True).start()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._server.alarm, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == self._server.alarm:
                    os.eventfd_read(fd)
                    # Answers that wait for more: give the endpoint that runs now a moment, then send them.
                    time.sleep(SHORTLY)
                    self._server.flush()
                else:
                    self._serve()

    def _serve(self) -> None:
        data, fds, _, _ = socket.recv_fds(self._sock, MESSAGE, 1)
        if not data:
            # The controller is gone. The zygote ends this process too; this is for when it cannot.
            os.killpg(os.getpgrp(), signal.SIGKILL)
        verb, *content = pickle.loads(data)
        if verb == "actor":
            self._start_actor(socket.socket(fileno=fds[0]))
        elif verb == "stop":
            self._server.stop()
            self._actors.put(None)
        elif verb == "ping":
            self._answer(content[0], True)
        elif verb == "stacks":
            self._answer(content[0], stacks())

    def _start_actor(self, sock: socket.socket) -> None:
        if self._first:
            self._first = False
            self._actors.put(sock)
        else:
            threading.Thread(target=self._server.serve, args=(sock,), name="actor", daemon=True).start()

    def _answer(self, number: int, content: Any) -> None:
        self._sock.send(pickle.dumps((number, content)))


TEXT = 1 << 16
"""Characters of stacks at most: one message of the socket holds them."""


def stacks() -> str:
    """The stack of every thread of this process but the calling one, as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    text = "\n".join(
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)).rstrip()}"
        for ident, frame in sys._current_frames().items()
        if ident != threading.get_ident()
    )
    return text[:TEXT]
