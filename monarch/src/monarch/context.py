"""Where the running code is: which actor, on which rank."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from monarch.shape import Point

if TYPE_CHECKING:
    from monarch.engine.child import Place


@dataclass(frozen=True, slots=True)
class Context:
    """`actor` is the mesh's name, or "controller" outside actors; `rank` the full coordinates in its mesh."""

    actor: str
    rank: Point


_context: ContextVar[Context] = ContextVar("monarch-context")
_CONTROLLER = Context("controller", Point({}, {}))


def context() -> Context:
    """Of the running endpoint, or of the controller."""
    return _context.get(_CONTROLLER)


def current_rank() -> Point:
    """Full coordinates of the running actor, whatever slice it was called through."""
    return context().rank


def current_size() -> dict[str, int]:
    """Extent of the running actor's whole mesh."""
    return dict(context().rank.extent)


def current_actor_name() -> str:
    """Name of the running actor's mesh."""
    return context().actor


def enter(place: Place) -> None:
    """For the engine: this thread, and what it starts, runs the actor at `place`."""
    _context.set(Context(place.actor, Point(place.rank, place.extent)))
