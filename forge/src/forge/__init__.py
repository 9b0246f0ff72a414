"""Reinforcement learning for language models where only the algorithm is yours."""

from forge.distributions import warn_of_clashes
from forge.errors import ForgeError

__all__ = ["ForgeError", "__version__"]

__version__ = "0.1.0"

warn_of_clashes()
