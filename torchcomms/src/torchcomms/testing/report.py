"""What a run of the kit found, and the checks it consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchcomms.backend import Capabilities
    from torchcomms.testing.world import World

Make = Callable[[int], "World"]


@dataclass(frozen=True, slots=True)
class Report:
    """Check ids: those that ran, those that the backend does not claim (with the reason), those that failed (why)."""

    ran: tuple[str, ...]
    unclaimed: Mapping[str, str]
    failed: Mapping[str, str]

    def __str__(self) -> str:
        lines = [f"{len(self.ran)} checks ran, {len(self.failed)} failed, {len(self.unclaimed)} not claimed"]
        lines += [f"FAILED {check}: {reason}" for check, reason in self.failed.items()]
        return "\n".join(lines + [f"unclaimed {check}: {reason}" for check, reason in self.unclaimed.items()])


@dataclass(frozen=True, slots=True)
class Check:
    """One check: a stable id, the clause of the contract it tests, and the function that raises if it does not hold.

    `claim` returns why the backend does not claim it, or "".
    """

    id: str
    clause: str
    run: Callable[[World], None]
    size: int = 2
    claim: Callable[[Capabilities], str] = lambda capabilities: ""


def expect(holds: object, what: str) -> None:
    """Raise `AssertionError` with the reason unless it holds; plain asserts vanish under -O."""
    if not holds:
        raise AssertionError(what)
