"""The hier backend: a local backend inside each host, one wire between all ranks, and collectives composed of both."""

from torchcomms.providers.hier.backend import HierBackend, HierOptions

__all__ = ["HierBackend", "HierOptions"]
