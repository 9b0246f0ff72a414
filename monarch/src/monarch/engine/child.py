"""An actor process from its fork to its end: surroundings before user code, then its actors, then a clean exit."""

from __future__ import annotations

import atexit
import os
import queue
import random
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from monarch.engine.linux import die_with_parent


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the processes of one mesh share."""

    environ: dict[str, str]
    path: list[str]
    directory: str
    threads: int
    zygote: int


@dataclass(frozen=True, slots=True)
class Birth:
    """What is one process's own. `number` names it between controller and zygote, `mesh` its surroundings."""

    number: int
    mesh: int
    environ: dict[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor is: its mesh's name, its full coordinates and the extent that they are in."""

    actor: str
    rank: dict[str, int]
    extent: Mapping[str, int]


def live(birth: Birth, surroundings: Surroundings, fds: list[int]) -> NoReturn:
    """The whole life of a forked child. The descriptors are control, stdout, stderr, and the two slabs."""
    from monarch.engine.control import Control
    from monarch.engine.server import Server
    from monarch.engine.slab import InSlab, OutSlab

    control, out, err, incoming, outgoing = fds
    _settle_in(birth, surroundings, out, err)
    actors: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()
    slabs = InSlab(incoming), OutSlab(outgoing)
    server = Server(*slabs)
    Control(socket.socket(fileno=control), server, actors).start()
    # The first actor has the main thread, which some libraries insist on; later ones have their own.
    while (sock := actors.get()) is not None:
        server.serve(sock)
    leave(0)


def leave(code: int) -> NoReturn:
    """Run what was registered for exit, write what is buffered, and end."""
    try:
        atexit._run_exitfuncs()
        flush()
    finally:
        os._exit(code)


def flush() -> None:
    """Write what user code printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


def _settle_in(birth: Birth, surroundings: Surroundings, out: int, err: int) -> None:
    die_with_parent(signal.SIGKILL)
    if os.getppid() != surroundings.zygote:
        os._exit(1)
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(surroundings.environ | birth.environ)
    sys.path[:] = surroundings.path
    os.chdir(surroundings.directory)
    _redirect(out, err)
    _seed()
    _set_threads(surroundings.threads)
    threading.current_thread().name = "actor"


def _redirect(out: int, err: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _seed() -> None:
    """A fresh interpreter would have seeds of its own; forked ones would share the zygote's."""
    random.seed()
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()


def _set_threads(count: int) -> None:
    """For libraries not yet imported by the variable, for torch, which read it at its import, by its own call."""
    wanted = os.environ.setdefault("OMP_NUM_THREADS", str(count))
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(int(wanted.split(",")[0]))
