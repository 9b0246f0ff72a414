"""Custom kernels: finds providers of `helium.kernels.v1` by entry point, imported only when a model asks for one."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from typing import Any

from executor.errors import KernelError

GROUP = "helium.kernels.v1"
INTERFACE = (1, 0)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its elements, as the contract has it: strides in elements."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]


def providers() -> dict[str, list[metadata.EntryPoint]]:
    """Every namespace with the entry points that claim it; none of them is imported."""
    found: dict[str, list[metadata.EntryPoint]] = {}
    for point in metadata.entry_points(group=GROUP):
        if point.value not in (known.value for known in found.setdefault(point.name, [])):
            found[point.name].append(point)
    return found


@lru_cache(maxsize=64)
def provider(namespace: str) -> Any | None:
    """The provider of a namespace, checked; None if nobody provides it. KernelError for one that cannot be used."""
    points = providers().get(namespace, [])
    if not points:
        return None
    if len(points) > 1:
        owners = " and ".join(sorted(map(_owner, points)))
        raise KernelError(namespace, f"kernels of that namespace are provided by {owners}; uninstall one of them")
    (point,) = points
    try:
        made = point.load()
    except Exception as error:  # an import runs foreign code, which may raise anything
        raise KernelError(namespace, f"{_owner(point)} cannot be imported: {error}; reinstall it") from error
    _check(made, namespace, _owner(point), "find", "name")
    return made


def find(name: str) -> Any | None:
    """The kernel "namespace::kernel", checked; None if nobody has it."""
    namespace = name.split("::")[0]
    found = provider(namespace)
    kernel = None if found is None else found.find(name)
    if kernel is not None:
        _check(kernel, name, f"the provider of {namespace!r}", "artifact", "target")
    return kernel


def _check(made: Any, name: str, owner: str, function: str, parameter: str) -> None:
    """Same major, minor not too old, and a call that binds."""
    interface = getattr(made, "interface", None)
    if not isinstance(interface, tuple) or interface[0] != INTERFACE[0] or interface[1] < INTERFACE[1]:
        cure = f"install a release of it for {INTERFACE[0]}.{INTERFACE[1]} or a later minor"
        raise KernelError(name, f"{owner} has interface {interface}; {cure}")
    try:
        signature = inspect.signature(getattr(made, function))
    except (AttributeError, TypeError, ValueError) as error:
        raise KernelError(name, f"{owner} has no function {function!r} that can be called") from error
    parameters = signature.parameters.values()
    if parameter not in signature.parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise KernelError(name, f"{owner}: {function}{signature} takes no {parameter!r}")


def _owner(point: metadata.EntryPoint) -> str:
    return "an unnamed distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"
