"""Ranks as processes: started together, on one machine or several, their output prefixed, ended together.

The launcher of node 0 hosts the store, so that no rank's death takes the meeting place away. Every rank is kept by a
process of its own (`leash`), which ends the rank and whatever it started, in whatever session, when the rank ends or
when the launcher does, even by SIGKILL.
"""

from torchcomms.launcher.job import Job
from torchcomms.launcher.run import launch

__all__ = ["Job", "launch"]
