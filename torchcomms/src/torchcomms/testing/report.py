"""What a run of a kit found, and the checks it consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchcomms.backend import Capabilities
    from torchcomms.testing.world import World

Make = Callable[[int], "World[Any]"]


@dataclass(frozen=True, slots=True)
class Report:
    """Check ids: those that ran, those that the backend does not claim (with the reason), those that failed (why).

    `facts` are what some checks measured or found out, by id: the dtypes that an operation carried, milliseconds.
    """

    ran: tuple[str, ...]
    unclaimed: Mapping[str, str]
    failed: Mapping[str, str]
    facts: Mapping[str, object] = field(default_factory=dict)
    name: str = ""
    capabilities: Capabilities | None = None

    def __str__(self) -> str:
        lines = [f"{len(self.ran)} checks ran, {len(self.failed)} failed, {len(self.unclaimed)} not claimed"]
        lines += [f"FAILED {check}: {reason}" for check, reason in self.failed.items()]
        return "\n".join(lines + [f"unclaimed {check}: {reason}" for check, reason in self.unclaimed.items()])

    def sheet(self) -> str:
        """One page in Markdown: what the backend can do, as far as the kit has seen it."""
        from torchcomms.testing.sheet import sheet

        return sheet(self)


@dataclass(frozen=True, slots=True)
class Check:
    """One check: a stable id, the clause of the contract it tests, and the function that raises if it does not hold.

    The function may return a fact for the report. `claim` returns why the backend does not claim it, or "". `needs` is
    a method that the world must have, or "".
    """

    id: str
    clause: str
    run: Callable[[World[Any]], object]
    size: int = 2
    claim: Callable[[Capabilities], str] = lambda capabilities: ""
    needs: str = ""


class Unclaimed(Exception):
    """Raised by a check that finds the backend not to claim what it is about."""


def expect(holds: object, what: str) -> None:
    """Raise `AssertionError` with the reason unless it holds; plain asserts vanish under -O."""
    if not holds:
        raise AssertionError(what)
