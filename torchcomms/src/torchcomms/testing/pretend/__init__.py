"""A pretend accelerator on the CPU: asynchronous as a real one, to try stream-ordered code where there is none."""

from torchcomms.testing.pretend.backend import PretendBackend
from torchcomms.testing.pretend.device import PretendTensor, register
from torchcomms.testing.pretend.stream import current, synchronize

__all__ = ["PretendBackend", "PretendTensor", "current", "register", "synchronize"]
