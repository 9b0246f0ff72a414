"""The zygote: a fresh interpreter that imports the preload set, never computes, and forks the actor processes.

It has one thread when it forks. It is the parent of its children and of their orphans: it reports each death with its
wait status, and when the controller is gone it leaves nothing behind.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from monarch.engine.child import Birth, Surroundings, live
from monarch.engine.linux import adopt_orphans, children, die_with_parent

MESSAGE = 1 << 20
DESCRIPTORS = 8


@dataclass(frozen=True, slots=True)
class Child:
    """A process that was forked and not yet reaped."""

    number: int
    pid: int
    pidfd: int


class _ControllerGone(Exception):
    """Raised by the signal that the kernel sends when the controller ends."""


class Zygote:
    """Answers the controller's messages on `sock`, one at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._children: dict[int, Child] = {}  # by pidfd
        self._surroundings: dict[int, Surroundings] = {}

    def run(self) -> None:
        """Serve until the controller is gone, then end everything."""
        try:
            while True:
                for fd, _ in self._poll.poll():
                    if fd in self._children:
                        self._bury(self._children[fd])
                    elif not self._serve():
                        return
        except _ControllerGone:
            return
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._end_everything()

    def _serve(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._sock, MESSAGE, DESCRIPTORS)
        if not data:
            return False
        verb, *content = pickle.loads(data)
        if verb == "preload":
            preload(content[0])
        elif verb == "surroundings":
            self._surroundings[content[0]] = content[1]
        elif verb == "fork":
            self._fork(content[0], fds)
        elif verb == "kill":
            self._kill(content[0])
        return True

    def _fork(self, birth: Birth, fds: list[int]) -> None:
        assert threading.active_count() == 1, "the zygote must have one thread when it forks"
        pid = os.fork()
        if pid == 0:
            self._become_child(birth, fds)
        for fd in fds:
            os.close(fd)
        with suppress(OSError):
            os.setpgid(pid, pid)
        child = Child(birth.number, pid, os.pidfd_open(pid))
        self._children[child.pidfd] = child
        self._poll.register(child.pidfd, select.POLLIN)
        self._tell(("born", child.number, pid), child.pidfd)

    def _become_child(self, birth: Birth, fds: list[int]) -> NoReturn:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._sock.close()
            for fd in self._children:
                os.close(fd)
            live(birth, self._surroundings[birth.mesh], fds)
        finally:
            os._exit(1)

    def _kill(self, number: int) -> None:
        for child in self._children.values():
            if child.number == number:
                _kill_group(child.pid)

    def _bury(self, child: Child) -> None:
        """Reap a dead child, with what is left of its process group and its orphans, and report it."""
        # The group before the reaping: until then the pid, and so the group, cannot be another's.
        _kill_group(child.pid)
        _, status = os.waitpid(child.pid, 0)
        self._poll.unregister(child.pidfd)
        del self._children[child.pidfd]
        os.close(child.pidfd)
        self._tell(("exit", child.number, os.waitstatus_to_exitcode(status)))
        self._end_orphans()

    def _end_orphans(self) -> None:
        known = {child.pid for child in self._children.values()}
        for pid in children():
            if pid not in known:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)

    def _end_everything(self) -> None:
        for child in self._children.values():
            _kill_group(child.pid)
        # A dead child's children become this process's own, so look until there are none.
        while pids := children():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in pids:
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _tell(self, message: Any, *fds: int) -> None:
        with suppress(OSError):
            socket.send_fds(self._sock, [pickle.dumps(message)], fds)


def preload(modules: list[str]) -> None:
    """Import what every child would import; a child reports for itself what cannot be imported."""
    for name in modules:
        with suppress(Exception):
            importlib.import_module(name)
    # What the imports registered for exit is not for the children to undo: torch alone would cost each 100 ms.
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False
    gc.collect()
    gc.freeze()


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _controller_gone(number: int, frame: Any) -> None:
    raise _ControllerGone


def main() -> None:
    """Entry of the zygote's interpreter: the descriptor of its socket and the controller's pid are its arguments."""
    fd, controller = int(sys.argv[1]), int(sys.argv[2])
    # While it imports it has no children, so it may simply die.
    die_with_parent(signal.SIGTERM)
    if os.getppid() != controller:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    preload(["monarch.actor", "monarch.engine.byvalue", "monarch.engine.control"])
    signal.signal(signal.SIGTERM, _controller_gone)
    Zygote(socket.socket(fileno=fd)).run()
