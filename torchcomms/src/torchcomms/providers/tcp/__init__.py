"""The tcp backend: one connection for each pair of ranks, polled by whoever waits."""

from torchcomms.providers.tcp.backend import TcpBackend, TcpOptions

__all__ = ["TcpBackend", "TcpOptions"]
