"""Tile kernels in thirty lines of PyTorch, compiled to native vector code for CPUs and to Triton for GPUs."""

from helium import exc, language
from helium.config import Config
from helium.kernel import Kernel, kernel

__version__ = "0.1.0"

__all__ = ["Config", "Kernel", "exc", "kernel", "language"]
