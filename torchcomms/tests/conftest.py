"""The fixture `start`: real processes that need not import torch again, forked from one that has."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore, TCPStore

import torchcomms

DEADLINE = 120


class Forked:
    """A process running a script; text pipes `stdin`, `stdout` and `stderr`, as of subprocess.Popen."""

    def __init__(self, zygote, argv, env):
        pipes = [os.pipe() for _ in range(3)]
        self.stdin = os.fdopen(pipes[0][1], "w")
        self.stdout, self.stderr = (os.fdopen(pipe[0]) for pipe in pipes[1:])
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        answers, answering = socket.socketpair()
        answers.settimeout(DEADLINE)
        request = json.dumps({"argv": [str(one) for one in argv], "env": env}).encode()
        socket.send_fds(zygote, [request], [*theirs, answering.fileno()])
        for descriptor in theirs:
            os.close(descriptor)
        answering.close()
        self._answers, self._socket = answers.makefile(), answers
        self.pid, self.returncode = int(self._answers.readline()), None

    def signal(self, number):
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self):
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)

    def communicate(self):
        """What it wrote, when it has ended."""
        with ThreadPoolExecutor(1) as thread:
            errors = thread.submit(self.stderr.read)
            written = self.stdout.read(), errors.result()
        self.wait()
        return written

    def wait(self):
        if self.returncode is None:
            self.returncode = int(self._answers.readline())
        return self.returncode

    def close(self):
        """Kill what still runs and release the pipes."""
        self.kill()
        self.wait()
        for end in (self.stdin, self.stdout, self.stderr, self._answers, self._socket):
            end.close()


@pytest.fixture(scope="session", autouse=True)
def one_thread_per_rank():
    """Ranks that are threads of this process need none beside them: each would have a pool of OpenMP's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def zygote():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    script = Path(__file__).with_name("zygote.py")
    command = [sys.executable, str(script), str(theirs.fileno())]
    # One thread: a process with several must not fork.
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env={**os.environ, "OMP_NUM_THREADS": "1"})
    theirs.close()
    yield ours
    ours.close()
    assert process.wait(timeout=DEADLINE) == 0


@pytest.fixture
def start(zygote):
    """`start(script, *arguments, **environment) -> Forked`, killed at the end of the test or at the deadline."""
    started = []

    def start(*argv, **env):
        started.append(Forked(zygote, argv, {**os.environ, "OMP_NUM_THREADS": "1", **env}))
        return started[-1]

    deadline = threading.Timer(DEADLINE, lambda: [process.kill() for process in started])
    deadline.start()
    yield start
    deadline.cancel()
    for process in started:
        process.close()


@pytest.fixture
def command(start, tmp_path):
    """`command(*arguments, **environment)`: a process of the command `torchcomms`."""
    script = tmp_path / "torchcomms_command.py"
    script.write_text("from torchcomms.cli import main; main()")
    return lambda *arguments, **env: start(script, *arguments, **env)


@pytest.fixture
def ranks(start):
    """`ranks(size, script, *arguments, **env)`: ranks that meet at a store of this process, as with a launcher."""
    stores = []

    def ranks(size, script, *arguments, **env):
        stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(stores[-1].port), "WORLD_SIZE": str(size)}
        meeting["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        return [start(script, *arguments, RANK=str(rank), **meeting, **env) for rank in range(size)]

    return ranks


@pytest.fixture(params=["inproc", "tcp", "shm"])
def backend(request):
    """The name of a backend whose ranks may be threads."""
    return request.param


@pytest.fixture(scope="session")
def outcomes():
    """`outcomes(backend, size, function)`: what `function(comm)` returns or raises on each rank; ranks are threads."""

    def outcomes(backend, size, function, timeout=20.0, **options):
        store = HashStore()

        def rank(number):
            where = {"store": store, "rank": number, "size": size, "timeout": timedelta(seconds=timeout)}
            with torchcomms.new_comm(backend, "cpu", name="test", **where, **options) as comm:
                try:
                    return function(comm)
                except Exception as error:
                    return error

        with ThreadPoolExecutor(size) as threads:
            return list(threads.map(rank, range(size)))

    return outcomes


@pytest.fixture(scope="session")
def world(outcomes):
    """As `outcomes`, and the first error of any rank is raised."""

    def world(*arguments, **options):
        found = outcomes(*arguments, **options)
        for outcome in found:
            if isinstance(outcome, Exception):
                raise outcome
        return found

    return world
