"""Finds providers of a published contract by entry point: listed from metadata, imported only when asked for."""

from __future__ import annotations

from importlib import metadata

from forge.errors import ProviderError

__all__ = ["check_interface", "load", "names"]


def names(group: str) -> dict[str, list[metadata.EntryPoint]]:
    """Every name of a group with the entry points that claim it; imports none of them."""
    found: dict[str, list[metadata.EntryPoint]] = {}
    for point in sorted(metadata.entry_points(group=group), key=lambda point: point.name):
        if point.value not in (known.value for known in found.setdefault(point.name, [])):
            found[point.name].append(point)
    return found


def load(group: str, name: str, *, install: str) -> object:
    """What the entry point `name` of `group` names; `install` says which extra brings the usual providers."""
    found = names(group)
    if name not in found:
        there = ", ".join(found) or "none"
        raise ProviderError(f"no provider {name!r} in {group} (there is: {there}); pip install {install!r}", name=name)
    if len(found[name]) > 1:
        owners = " and ".join(sorted(_owner(point) for point in found[name]))
        raise ProviderError(f"{name!r} in {group} is provided by {owners}; uninstall one of them", name=name)
    (point,) = found[name]
    try:
        return point.load()
    except Exception as error:  # an import runs foreign code, which may raise anything
        raise ProviderError(
            f"{name!r} in {group} comes from {_owner(point)}, whose {point.value} cannot be imported: {error}; "
            "reinstall that distribution or choose another provider",
            name=name,
        ) from error


def check_interface(provider: object, name: str, needed: tuple[int, int]) -> None:
    """Accept a provider of the same major whose minor is at least the one needed."""
    interface = getattr(provider, "interface", None)
    if not isinstance(interface, tuple) or interface[0] != needed[0] or interface[1] < needed[1]:
        raise ProviderError(
            f"{name!r} has interface {interface}; forge needs {needed[0]}.{needed[1]} or a later minor of it; "
            "install matching releases of forge and the provider",
            name=name,
        )


def _owner(point: metadata.EntryPoint) -> str:
    return "an unnamed distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"
