"""One script drives a mesh of actor processes, moves tensors at memory speed and sees every failure in milliseconds."""

from monarch.distributions import warn_of_clashes
from monarch.launchers import find_launcher, launchers
from monarch.spec import ActorSpec

__all__ = ["ActorSpec", "find_launcher", "launchers"]

__version__ = "0.1.0"

warn_of_clashes()
