"""Tile kernels in thirty lines of PyTorch, compiled to native vector code for CPUs and to Triton for GPUs."""

from helium import exc, language, library
from helium.config import Config
from helium.explain import Explanation
from helium.installed import warn_of_others
from helium.kernel import Kernel, kernel
from helium.targets import host_target

__version__ = "0.1.0"

__all__ = ["Config", "Explanation", "Kernel", "exc", "host_target", "kernel", "language", "library"]

warn_of_others()
