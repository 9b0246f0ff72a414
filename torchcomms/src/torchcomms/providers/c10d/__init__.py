"""Backends over the libraries that torch.distributed wraps, without its global state."""

from torchcomms.providers.c10d.gloo import GlooBackend, GlooOptions
from torchcomms.providers.c10d.vendors import NcclBackend, RcclBackend, VendorOptions, XcclBackend

__all__ = ["GlooBackend", "GlooOptions", "NcclBackend", "RcclBackend", "VendorOptions", "XcclBackend"]
