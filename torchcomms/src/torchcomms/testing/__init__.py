"""The conformance kit of the backend contract: `check_backend` over a maker of worlds. Needs no test runner."""

from torchcomms.testing.kit import check_backend
from torchcomms.testing.report import Report
from torchcomms.testing.world import ThreadWorld, World

__all__ = ["Report", "ThreadWorld", "World", "check_backend"]
