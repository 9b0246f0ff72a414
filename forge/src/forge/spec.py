"""What forge asks a launcher for: an actor class on a mesh of ranks, in the fields of monarch's actor spec 1.0."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

__all__ = ["ActorSpec", "Launcher", "Mesh", "Verbs"]


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """Read by attribute, so that any launcher of the contract carries it out; see `INTERFACES.md`."""

    actor: str | type[Any]  # "package.module:Class"
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    extent: Mapping[str, int] = field(default_factory=lambda: {"procs": 1})
    resources: Mapping[str, float] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    restart: str = "never"
    endpoints: tuple[str, ...] | None = None
    idempotent: frozenset[str] = frozenset()

    @property
    def size(self) -> int:
        """How many ranks: the product of the extent."""
        return prod(self.extent.values())


class Verbs(Protocol):
    """One endpoint of a mesh."""

    def call(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Run on all ranks; `.values()` of what is awaited has one value a rank, in order."""
        ...

    def call_one(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Run on the only rank there is."""
        ...

    def choose(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Run on one rank."""
        ...

    def broadcast(self, *args: Any, **kwargs: Any) -> Awaitable[None]:
        """Hand over to all ranks, without an answer."""
        ...


class Mesh(Protocol):
    """Running actors, one a rank; every endpoint is an attribute with `Verbs`."""

    @property
    def extent(self) -> Mapping[str, int]:
        """The named dimensions, as in the spec."""
        ...

    def __getattr__(self, endpoint: str, /) -> Verbs: ...

    async def stop(self) -> None:
        """End the actors."""
        ...


class Launcher(Protocol):
    """Carries specs out; what `forge.launch.load` returns."""

    @property
    def interface(self) -> tuple[int, int]:
        """Major and minor of the contract."""
        ...

    @property
    def name(self) -> str:
        """The name of its entry point."""
        ...

    async def launch(self, *specs: Any) -> tuple[Any, ...]:
        """One mesh a spec, in order; all placed or none."""
        ...

    async def close(self) -> None:
        """Stop everything it launched."""
        ...
