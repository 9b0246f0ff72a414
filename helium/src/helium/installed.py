"""Notices a distribution that brings another package of the same import name."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from importlib import metadata

OTHERS = ("helium",)
"""Distributions, other than this one, that are known to own the import name."""


def warn_of_others(names: Iterable[str] = OTHERS) -> None:
    """Warn if a known distribution of the same import name is installed too; each look-up costs microseconds."""
    for name in names:
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        warnings.warn(
            f"the distribution {name!r} {version} owns the import name 'helium' too, and overwrites files of "
            f"pentad-helium: uninstall both, then install pentad-helium alone",
            RuntimeWarning,
            stacklevel=2,
        )
