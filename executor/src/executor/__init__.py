"""Compile a PyTorch model ahead of time into one program file that runs without torch, with the same numbers."""

__version__ = "0.1.0"
