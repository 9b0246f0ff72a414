"""The conformance kits, of the backend contract and of communicators, over makers of worlds. Need no test runner."""

from torchcomms.testing.communicators import check_communicator
from torchcomms.testing.kit import check_backend
from torchcomms.testing.processes import CommProcesses, ProcessWorld
from torchcomms.testing.report import Report
from torchcomms.testing.threads import CommThreads, ThreadWorld
from torchcomms.testing.world import World

__all__ = [
    "CommProcesses",
    "CommThreads",
    "ProcessWorld",
    "Report",
    "ThreadWorld",
    "World",
    "check_backend",
    "check_communicator",
]
