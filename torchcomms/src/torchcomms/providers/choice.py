"""Choosing among backends by what works: each rank says what it cannot use and why, and all come to the same choice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchcomms.backend import Store
from torchcomms.discovery import find
from torchcomms.errors import BackendNotFound, CommsError, name_ranks
from torchcomms.locality import exchange


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend that was chosen, and for each that was preferred to it the reason why not."""

    name: str
    passed: Mapping[str, str]

    def __str__(self) -> str:
        return "; ".join([self.name, *(f"not {name}: {reason}" for name, reason in self.passed.items())])


def why_not(name: str, device: str) -> str:
    """Why backend `name` cannot be used here for tensors on `device`; empty if it can."""
    try:
        capabilities = find(name).capabilities()
    except CommsError as error:
        return str(error)
    if not capabilities.usable:
        return capabilities.reason or "it is not usable here"
    if device not in capabilities.devices:
        return f"it moves tensors on {', '.join(sorted(capabilities.devices))}, not on {device}"
    return ""


def survey(
    store: Store, prefix: str, rank: int, size: int, names: Sequence[str], device: str, deadline: float
) -> list[dict[str, str]]:
    """For each rank, which of `names` it cannot use, with the reason."""
    mine = {name: reason for name in names if (reason := why_not(name, device))}
    return [dict(json.loads(one)) for one in exchange(store, prefix, rank, size, json.dumps(mine), deadline)]


def choose(names: Sequence[str], refusals: Mapping[int, Mapping[str, str]]) -> Choice:
    """The first of `names` that no rank refuses. Raises `BackendNotFound` with all the reasons if there is none."""
    passed: dict[str, str] = {}
    for name in names:
        against = [rank for rank in sorted(refusals) if name in refusals[rank]]
        if not against:
            return Choice(name, passed)
        passed[name] = f"{refusals[against[0]][name]} (on {name_ranks(against)})"
    reasons = "; ".join(f"{name}: {reason}" for name, reason in passed.items())
    raise BackendNotFound(f"no backend can be used on all ranks: {reasons}", name=names[0], known=tuple(names))
