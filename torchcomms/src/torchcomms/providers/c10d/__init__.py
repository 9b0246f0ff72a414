"""Backends over the libraries that torch.distributed wraps, without its global state."""

from torchcomms.providers.c10d.gloo import GlooBackend, GlooOptions

__all__ = ["GlooBackend", "GlooOptions"]
