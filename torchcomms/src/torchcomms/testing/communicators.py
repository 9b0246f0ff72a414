"""`check_communicator`: what `TorchComm` promises over any backend, on worlds of communicators."""

from __future__ import annotations

from collections.abc import Sequence

from torchcomms.testing import calls, layouts, lives
from torchcomms.testing.kit import run_checks
from torchcomms.testing.report import Check, Make, Report

CHECKS: tuple[Check, ...] = (*layouts.CHECKS, *calls.CHECKS, *lives.CHECKS)


def check_communicator(make: Make, *, only: Sequence[str] = ()) -> Report:
    """Check communicators over a backend: layouts, mismatches, deaths, recovery, leaks.

    `make(size)` opens a world of communicators: `lambda size: CommThreads(MyBackend, size)`, or of ranks that are
    processes: `lambda size: CommProcesses(MyBackend, size)`. Every check gets a world of its own. `only` are the ids to
    run; empty means all. Never raises for a failing backend: the report says which checks failed and why.
    """
    return run_checks(CHECKS, make, None, only)
