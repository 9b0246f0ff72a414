"""Warns when another installed distribution owns this import name."""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError, version

CLASHING = ("torchmonarch", "monarch")


def warn_of_clashes(names: tuple[str, ...] = CLASHING) -> None:
    """Look the known names up in the metadata: their files would overwrite or shadow these."""
    for name in names:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        warnings.warn(
            f"{name} {found} also owns the import name monarch; uninstall it or pentad-monarch",
            UserWarning,
            stacklevel=3,
        )
