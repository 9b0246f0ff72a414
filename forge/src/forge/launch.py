"""Launchers by name: `inline` is forge's own; `local` and others come from packages that provide them."""

from __future__ import annotations

from typing import Any, cast

from forge import providers
from forge.errors import ProviderError
from forge.spec import Launcher

__all__ = ["GROUP", "load"]

GROUP = "monarch.launchers.v1"
NEEDED = (1, 0)


def load(name: str, **options: Any) -> Launcher:
    """A launcher made by the entry point `name`; raises `ProviderError` if there is none or it breaks the contract."""
    make = providers.load(GROUP, name, install="pentad-forge[stack]")
    if not callable(make):
        raise ProviderError(f"{name!r} in {GROUP} names {make!r}; it must name make(**options) -> Launcher", name=name)
    launcher = make(**options)
    providers.check_interface(launcher, name, NEEDED)
    missing = [method for method in ("launch", "close") if not callable(getattr(launcher, method, None))]
    if missing:
        raise ProviderError(f"launcher {name!r} has no {', '.join(missing)}; it does not keep the contract", name=name)
    return cast("Launcher", launcher)
