"""From Python source to the typed tile IR."""

from helium.frontend.compile import lower

__all__ = ["lower"]
