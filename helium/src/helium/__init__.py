"""Tile kernels in thirty lines of PyTorch, compiled to native vector code for CPUs and to Triton for GPUs."""

__version__ = "0.1.0"
