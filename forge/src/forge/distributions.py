"""Other distributions that install a package called `forge` as well; pip merges them without a word."""

from __future__ import annotations

import warnings
from importlib import metadata

__all__ = ["CLASHING", "warn_of_clashes"]

CLASHING = ("forge", "torchforge")


def warn_of_clashes() -> None:
    """Warn once for each of `CLASHING` that is installed beside this one."""
    for name in CLASHING:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        warnings.warn(
            f"{name} {version} and pentad-forge both install a package called forge; their files are mixed: "
            f"pip uninstall both, then install the one you mean",
            RuntimeWarning,
            stacklevel=3,
        )
