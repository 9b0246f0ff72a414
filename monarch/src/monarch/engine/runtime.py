"""The runtime of a controller: one reactor, one zygote, one slab, and the processes that are alive."""

from __future__ import annotations

import atexit
import itertools
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

from monarch.engine.child import Birth, Surroundings
from monarch.engine.process import Process, pair_for_control
from monarch.engine.reactor import Reactor
from monarch.engine.slab import InSlab, Leases, OutSlab, make_slab

MESSAGE = 1 << 16
CODE = "from monarch.engine.zygote import main; main()"

Prefix = Callable[[], str | None]


class Runtime:
    """Everything that the local engine keeps in this process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.reactor = Reactor()
        self._slab_fd = make_slab()
        self._slab = OutSlab(self._slab_fd)
        self._processes: dict[int, Process] = {}
        self._numbers = itertools.count(1)
        self._preloaded: set[str] = set()
        self._lock = threading.Lock()
        self.closed = False
        self._sock, self._zygote = self._start_zygote()
        self.reactor.register(self._sock.fileno(), select.EPOLLIN, self._ready)
        atexit.register(self.close)

    def _start_zygote(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = pair_for_control()
        command = [sys.executable, "-c", CODE, str(theirs.fileno()), str(self.owner)]
        started: list[subprocess.Popen[bytes]] = []

        def start() -> None:
            # The parent-death signal follows the thread that starts a process: the background one stays.
            environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            started.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environ))

        self.reactor.in_background(start)
        self.reactor.drive(lambda: bool(started))
        theirs.close()
        return ours, started[0]

    # --- starting ----------------------------------------------------------------------------------------------

    def spawn(
        self, environs: Sequence[Mapping[str, str]], prefixes: Sequence[Prefix], threads: int, preload: Sequence[str]
    ) -> list[Process]:
        """Start one process for each environment; returns at once, before the processes are there."""
        with self._lock:
            mesh = next(self._numbers)
            self._preload({*preload, *({"torch"} & set(sys.modules))})
            assert self._zygote.pid
            surroundings = Surroundings(dict(os.environ), list(sys.path), os.getcwd(), threads, self._zygote.pid)
            self._tell(("surroundings", mesh, surroundings))
            return [self._fork(mesh, dict(e), prefix) for e, prefix in zip(environs, prefixes, strict=True)]

    def _preload(self, modules: set[str]) -> None:
        if new := sorted(modules - self._preloaded):
            self._preloaded |= set(new)
            self._tell(("preload", new))

    def _fork(self, mesh: int, environ: dict[str, str], prefix: Prefix) -> Process:
        number = next(self._numbers)
        control, theirs = pair_for_control()
        out, out_theirs = os.pipe()
        err, err_theirs = os.pipe()
        slab = make_slab()
        process = Process(self.reactor, number, control, (out, err), prefix, Leases(self._slab), InSlab(slab))
        self._processes[number] = process
        fds = (theirs.fileno(), out_theirs, err_theirs, self._slab_fd, slab)
        self._tell(("fork", Birth(number, mesh, environ)), *fds)
        theirs.close()
        os.close(out_theirs)
        os.close(err_theirs)
        return process

    def kill(self, processes: Sequence[Process]) -> None:
        """End processes, with their process groups, at once."""
        for process in processes:
            if not process.ended:
                self._tell(("kill", process.number))

    def _tell(self, message: object, *fds: int) -> None:
        try:
            socket.send_fds(self._sock, [pickle.dumps(message)], fds)
        except OSError:
            self._zygote_died()

    # --- events ------------------------------------------------------------------------------------------------

    def _ready(self, events: int) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, MESSAGE, 1)
        except OSError:
            data, fds = b"", []
        if not data:
            self._zygote_died()
            return
        verb, number, fact = pickle.loads(data)
        process = self._processes.get(number)
        if verb == "exit":
            self._processes.pop(number, None)
        if process is None or process.ended:
            for fd in fds:
                os.close(fd)
        elif verb == "born":
            process.born(fact, fds[0])
        else:
            process.end(fact)

    def _zygote_died(self) -> None:
        """Its children die with it, by their parent-death signal."""
        self.reactor.unregister(self._sock.fileno())
        self._end_all()

    # --- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End every process and the zygote, and release everything. Idempotent."""
        if self.closed or os.getpid() != self.owner:
            return
        self.closed = True
        atexit.unregister(self.close)
        self.reactor.unregister(self._sock.fileno())
        self._sock.close()
        try:
            self._zygote.wait(5)
        except subprocess.TimeoutExpired:
            self._zygote.kill()
            self._zygote.wait()
        self._end_all()
        self.reactor.close()
        os.close(self._slab_fd)

    def _end_all(self) -> None:
        processes, self._processes = list(self._processes.values()), {}
        for process in processes:
            process.end(None)


_current: Runtime | None = None
_making = threading.Lock()


def runtime() -> Runtime:
    """This process's runtime, started at its first use; a fork of this process gets its own."""
    global _current
    with _making:
        if _current is None or _current.owner != os.getpid() or _current.closed:
            _current = Runtime()
        return _current
