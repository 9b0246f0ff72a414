"""The shm backend: collectives of the ranks of one machine, through memory that they share."""

from torchcomms.providers.shm.backend import ShmBackend, ShmOptions

__all__ = ["ShmBackend", "ShmOptions"]
