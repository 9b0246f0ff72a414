"""Collectives between ranks on any hardware that do not hang and do not lie, over a published backend ABC."""

__version__ = "0.1.0"
