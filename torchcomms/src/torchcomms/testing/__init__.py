"""The conformance kits: `check_backend` of the contract, over a maker of worlds. Needs no test runner."""

from torchcomms.testing.kit import check_backend
from torchcomms.testing.processes import CommProcesses, ProcessWorld
from torchcomms.testing.report import Report
from torchcomms.testing.threads import CommThreads, ThreadWorld
from torchcomms.testing.world import World

__all__ = ["CommProcesses", "CommThreads", "ProcessWorld", "Report", "ThreadWorld", "World", "check_backend"]
