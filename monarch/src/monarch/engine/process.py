"""The controller's view of one actor process: its control socket, its output, its links and its death."""

from __future__ import annotations

import itertools
import os
import pickle
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from monarch.engine.link import Link
from monarch.engine.output import Pump
from monarch.engine.reactor import Reactor
from monarch.engine.slab import InSlab, Leases

ANSWER = 1 << 18
_numbers = itertools.count(1)

STATUS_GRACE = 0.01
"""Seconds that the zygote has to report how a process ended, after its pidfd said that it did."""


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended; both None where the engine could not learn it in time."""

    exit_code: int | None
    signal: int | None
    last_output: tuple[str, ...]

    def __str__(self) -> str:
        if self.signal is not None:
            return f"was killed by {signal.Signals(self.signal).name}"
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}"
        return "ended"


class Process:
    """One child of the zygote. Its events come from the reactor's driving thread."""

    def __init__(
        self,
        reactor: Reactor,
        number: int,
        control: socket.socket,
        outputs: tuple[int, int],
        prefix: Callable[[], str | None],
        leases: Leases,
        incoming: InSlab,
    ) -> None:
        self._reactor, self.number, self._control = reactor, number, control
        self._leases, self._incoming = leases, incoming
        self._out = Pump(reactor, outputs[0], "stdout", prefix)
        self._err = Pump(reactor, outputs[1], "stderr", prefix)
        self._pidfd = -1
        self._at_end: list[Callable[[Death], None]] = []
        self._asked: dict[int, Callable[[object], None]] = {}
        reactor.register(control.fileno(), select.EPOLLIN, self._answered)
        self.pid: int | None = None
        self.death: Death | None = None

    @property
    def ended(self) -> bool:
        return self.death is not None

    def open_link(self) -> Link:
        """A data socket to a new actor in this process."""
        ours, theirs = socket.socketpair()
        link = Link(self._reactor, ours, self._leases, self._incoming)
        self._tell(("actor",), theirs.fileno())
        theirs.close()
        return link

    def at_end(self, callback: Callable[[Death], None]) -> None:
        """Call back when it ends, at once where it has."""
        if self.death is None:
            self._at_end.append(callback)
        else:
            callback(self.death)

    def stop(self) -> None:
        """Ask it to end after the endpoint that runs now."""
        self._tell(("stop",))

    def ask(self, verb: str, sink: Callable[[object], None]) -> None:
        """Ask its control thread, which answers however busy the actor is; a process that ends answers None."""
        if self.death is not None:
            sink(None)
            return
        number = next(_numbers)
        self._asked[number] = sink
        self._tell((verb, number))

    def _answered(self, events: int) -> None:
        try:
            data = self._control.recv(ANSWER)
        except OSError:
            data = b""
        if not data:
            self._reactor.unregister(self._control.fileno())
            return
        number, content = pickle.loads(data)
        self._asked.pop(number)(content)

    def _tell(self, message: tuple[object, ...], *fds: int) -> None:
        try:
            socket.send_fds(self._control, [pickle.dumps(message)], fds)
        except OSError:
            # It has ended, or is ending: its death is reported by another way.
            return

    def born(self, pid: int, pidfd: int) -> None:
        """The zygote forked it."""
        self.pid, self._pidfd = pid, pidfd
        self._reactor.register(pidfd, select.EPOLLIN, self._died)

    def _died(self, events: int) -> None:
        self._reactor.unregister(self._pidfd)
        self._reactor.later(STATUS_GRACE, lambda: self.end(None))

    def end(self, status: int | None) -> None:
        """It is dead; `status` as of `os.waitstatus_to_exitcode`. Fails everything under way, once."""
        if self.death is not None:
            return
        self._err.close()
        self._out.close()
        killed = status is not None and status < 0
        self.death = Death(
            None if killed else status, -status if killed and status is not None else None, tuple(self._err.last)
        )
        sinks, self._asked = list(self._asked.values()), {}
        for sink in sinks:
            sink(None)
        callbacks, self._at_end = self._at_end, []
        for callback in callbacks:
            callback(self.death)
        self._release()

    def _release(self) -> None:
        if self._pidfd >= 0:
            self._reactor.unregister(self._pidfd)
            os.close(self._pidfd)
        self._reactor.unregister(self._control.fileno())
        self._control.close()
        self._leases.free_all()
        self._incoming.close()


def pair_for_control() -> tuple[socket.socket, socket.socket]:
    """Both ends of a control connection; messages keep their bounds."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return ours, theirs
