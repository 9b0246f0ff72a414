"""Become a command that the kernel kills when the process that started it ends: `leash.py PARENT COMMAND…`.

Run as a script of its own between the launcher's fork and the command's exec: the launcher has threads, so no Python
may run in its forked child. The signal survives the exec. It is sent when the *thread* that started this process ends;
the launcher starts ranks from its main thread, which lives as long as the launcher does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def follow(parent: int) -> None:
    """Have SIGKILL sent to this process when its parent ends; end here if `parent` has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) was refused")
    if os.getppid() != parent:
        sys.exit(f"torchcomms: the launcher, process {parent}, ended before this rank started")


if __name__ == "__main__":
    follow(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
