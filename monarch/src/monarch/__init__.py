"""One script drives a mesh of actor processes, moves tensors at memory speed and sees every failure in milliseconds."""

__version__ = "0.1.0"
