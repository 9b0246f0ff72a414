"""One rank as a process under its leash: its environment, its start, how to end it, how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torchcomms.bootstrap import HOSTED
from torchcomms.launcher.job import Job
from torchcomms.launcher.nodes import Nodes

LEASHED = sys.platform == "linux"
# Isolated and without site: it needs only the standard library, and starts in a fiftieth of a second.
LEASH = (sys.executable, "-I", "-S", str(Path(__file__).with_name("leash.py")))
END = signal.SIGUSR1  # tells the leash to kill the rank and what it started
REMEMBERED = 40  # lines of a rank's errors in which the summary looks for the reason
PATIENCE = 10.0  # seconds that a leash may take to end everything


@dataclass(eq=False)
class Rank:
    """One process, and the end of what it wrote to stderr."""

    number: int
    process: subprocess.Popen[bytes]
    said: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def code(self) -> int | None:
        """The exit code, -n for signal n, None while it runs."""
        return self.process.poll()

    def ask(self) -> None:
        """Send SIGTERM to the rank and what it started in its process group."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the rank and everything that it started."""
        if self.code is None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, END) if LEASHED else os.killpg(self.process.pid, signal.SIGKILL)

    def collect(self) -> None:
        """Wait for the end of a rank that was told to end."""
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def fate(self) -> str:
        """How it ended, in words."""
        code = self.code
        if code is None:
            return "is running"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def start(job: Job, nodes: Nodes, local: int) -> Rank:
    """Start the rank that is number `local` on this machine. Call it from the main thread: see `leash`."""
    number = nodes.first + local
    command: Sequence[str] = [*LEASH, str(os.getpid()), *job.command] if LEASHED else job.command
    process = subprocess.Popen(
        command,
        env={**os.environ, **_variables(job, nodes, local), **job.environment},
        stdin=None if number == 0 else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    return Rank(number, process)


def _variables(job: Job, nodes: Nodes, local: int) -> dict[str, str]:
    """The words of torchrun, so that what is written for it runs as it is."""
    threads = max(1, (os.cpu_count() or 1) // job.ranks)
    number, size = str(nodes.first + local), str(nodes.size)
    return {
        "RANK": number,
        "LOCAL_RANK": str(local),
        "GROUP_RANK": str(job.node),
        "ROLE_RANK": number,
        "ROLE_NAME": "default",
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": str(job.ranks),
        "GROUP_WORLD_SIZE": str(job.nodes),
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": nodes.host,
        "MASTER_PORT": str(nodes.port),
        HOSTED: str(True),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": f"torchcomms-{nodes.port}",
        # Otherwise every rank starts a thread for each core, and they slow each other down.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
    }
