"""The vocabulary of the checks: a check, what it expects, and the specs that it launches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from monarch.spec import ActorSpec, Launcher
from monarch.testing.actors import ENDPOINTS

RANKS: Mapping[str, int] = {"hosts": 1, "procs": 3}


class Broken(Exception):
    """What a launcher does differently from the contract."""


@dataclass(frozen=True, slots=True)
class Check:
    """One clause of the contract, and the function that tries it.

    Every launcher must pass it, or, where `capability` is set, those that claim it. `requires` is a module without
    which there is nothing to try.
    """

    id: str
    clause: str
    run: Callable[[Launcher], Awaitable[None]]
    capability: str | None = None
    requires: str | None = None


def spec(extent: Mapping[str, int] = RANKS, **changes: Any) -> ActorSpec:
    """The kit's actor on a small mesh."""
    settings: dict[str, Any] = {"actor": "monarch.testing.actors:Probe", "endpoints": ENDPOINTS} | changes
    return ActorSpec(extent=extent, **settings)


def equal(what: str, seen: object, wanted: object) -> None:
    if seen != wanted:
        raise Broken(f"{what} is {seen!r}, not {wanted!r}")


def true(what: str, holds: bool) -> None:
    if not holds:
        raise Broken(what)


async def error_of(what: str, trial: Callable[[], Awaitable[Any]]) -> Exception:
    """The error that `trial` raises, be it when called or when awaited."""
    try:
        value = await trial()
    except Exception as error:
        return error
    raise Broken(f"{what} raised nothing and gave {value!r}")


def text_of(error: BaseException) -> str:
    """The message of an error and of every error in its group or behind it."""
    parts = [str(error)]
    if isinstance(error, BaseExceptionGroup):
        parts += [text_of(inner) for inner in error.exceptions]
    if error.__cause__ is not None:
        parts.append(text_of(error.__cause__))
    return "\n".join(parts)
