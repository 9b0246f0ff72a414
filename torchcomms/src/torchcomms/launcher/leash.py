"""The keeper of one rank: starts it, and ends it and all that it started when the rank or the launcher ends.

Run as a script of its own, `leash.py LAUNCHER COMMAND…`, with the standard library only. The launcher has threads, so
no Python may run in a forked child of it; this process has one thread and may fork. It is the subreaper of what the
rank starts: processes that the rank leaves behind become its children, whatever session they moved to. The kernel
tells it of the launcher's death, by a signal that is sent when the *thread* that started this process ends; the
launcher starts ranks from its main thread. Should the keeper itself be killed, the kernel kills the rank.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
PR_SET_CHILD_SUBREAPER = 36
END = signal.SIGUSR1  # from the launcher, or from the kernel when the launcher has ended: kill the rank
WATCHED = {signal.SIGCHLD, END}
ASKING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}  # meant for the rank, which is in the same process group
PATIENCE = (0.3, 1.0)  # seconds for what the rank left behind: to end by itself, to end when asked


def main(launcher: int, command: list[str]) -> None:
    """Run `command` and end as it ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    for number in ASKING:
        signal.signal(number, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, END)
    if os.getppid() != launcher:
        sys.exit(f"torchcomms: the launcher, process {launcher}, ended before this rank started")
    keeper, rank = os.getpid(), os.fork()
    if not rank:
        become(keeper, command)
    status = watch(rank)
    end_the_rest()
    end_as(status)


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) was refused")


def become(keeper: int, command: list[str]) -> None:
    """In the forked child: undo what exec would hand on, and become the rank."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    for number in {*ASKING, signal.SIGPIPE, signal.SIGXFSZ}:  # the interpreter ignores the last two
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"torchcomms: {command[0]} cannot be started: {error.strerror}\n".encode())
        os._exit(127)


def watch(rank: int) -> int:
    """Collect whatever ends until the rank has; its wait status. Kills it when told to."""
    while True:
        if signal.sigwaitinfo(WATCHED).si_signo == END:
            os.kill(rank, signal.SIGKILL)
        status = collect(rank)
        if status is not None:
            return status


def collect(rank: int = 0) -> int | None:
    """Take leave of all children that have ended; the wait status of `rank` if it is one of them."""
    found = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found = ended[1] if ended[0] == rank else found
    return found


def end_the_rest() -> None:
    """End what the rank has left behind, in steps: a helper that cleans up after it may take its moment."""
    for patience, number in zip(PATIENCE, (signal.SIGTERM, signal.SIGKILL), strict=True):
        until = time.monotonic() + patience
        while children():
            if (left := until - time.monotonic()) <= 0:
                break
            signal.sigtimedwait({signal.SIGCHLD}, left)
            collect()
        send(number, children())
    while left_behind := children():  # a killed process leaves its own children to this one
        send(signal.SIGKILL, left_behind)
        signal.sigtimedwait({signal.SIGCHLD}, 0.1)
        collect()


def send(number: int, processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def children() -> list[int]:
    """The processes whose parent is this one."""
    found = []
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            fields = Path(f"/proc/{int(entry)}/stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                found.append(int(entry))
    return found


def end_as(status: int) -> None:
    """End by the same signal or with the same code as the rank."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core dump is enough
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
