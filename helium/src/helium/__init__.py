"""Tile kernels in thirty lines of PyTorch, compiled to native vector code for CPUs and to Triton for GPUs.

Names are imported when first used, so that `helium.contract` can be imported without torch.
"""

import importlib
from typing import TYPE_CHECKING

from helium.installed import warn_of_others

if TYPE_CHECKING:
    from helium import exc, language, library
    from helium.config import Config
    from helium.decorator import Kernel, kernel
    from helium.explain import Explanation
    from helium.targets import host_target

__version__ = "0.1.0"

__all__ = ["Config", "Explanation", "Kernel", "exc", "host_target", "kernel", "language", "library"]

_HOMES = {
    "Config": "config",
    "Explanation": "explain",
    "Kernel": "decorator",
    "host_target": "targets",
    "kernel": "decorator",
}


def __getattr__(name: str) -> object:
    """Import what `name` needs, and keep it."""
    if name not in __all__:
        raise AttributeError(f"module 'helium' has no attribute {name!r}; it has {', '.join(__all__)}")
    home = importlib.import_module(f"helium.{_HOMES.get(name, name)}")
    found = globals()[name] = getattr(home, name) if name in _HOMES else home
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


warn_of_others()
