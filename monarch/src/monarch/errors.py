"""Every error of the package.

MonarchError
├── SpecError (ValueError)                 an ActorSpec that no launcher could carry out
├── UnknownLauncher (LookupError)          no installed distribution provides that launcher
├── LauncherConflict (LookupError)         two distributions provide one launcher name
├── LauncherBroken (ImportError)           a launcher was found but cannot be used
├── PlacementError (RuntimeError)          the specs of one launch do not fit; nothing was started
├── UnknownEndpoint (AttributeError)       a mesh has no endpoint of that name
├── BadArguments (TypeError)               arguments that an endpoint's signature does not take
├── DirectCall (TypeError)                 an endpoint called without a verb
├── NotPicklable (TypeError)               an argument or result that cannot travel
├── CallTimeout (TimeoutError)             no answer in time; the call goes on
├── CallCancelled (RuntimeError)           the caller cancelled its future
├── CallFailed (ExceptionGroup)            a call over several ranks failed on some
└── ActorError                             what one rank did
    ├── EndpointError (RuntimeError)       its endpoint raised
    ├── ConstructorError (RuntimeError)    its constructor raised
    ├── ActorStopped (RuntimeError)        it was stopped; the call did not run
    └── ActorDied (ConnectionError)        its process died; the call may have run
        └── ActorGone                      its process had died before; the call did not run
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class MonarchError(Exception):
    """Root of all errors of this package."""


class SpecError(MonarchError, ValueError):
    """An ActorSpec that no launcher could carry out; `field` names the part that is wrong."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class UnknownLauncher(MonarchError, LookupError):
    """No installed distribution provides a launcher called `name`; `known` lists what there is."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name, self.known = name, tuple(known)
        there = ", ".join(known) or "none"
        super().__init__(
            f"no launcher is called {name!r}; installed: {there}. Install the distribution that provides it"
            " (its metadata must have an entry point in the group monarch.launchers.v1)"
        )


class LauncherConflict(MonarchError, LookupError):
    """Two distributions provide a launcher called `name`; uninstall one of `distributions`."""

    def __init__(self, name: str, distributions: Sequence[str]) -> None:
        self.name, self.distributions = name, tuple(distributions)
        super().__init__(f"launcher {name!r} is provided by {' and by '.join(distributions)}; uninstall one of them")


class LauncherBroken(MonarchError, ImportError):
    """A launcher was found but cannot be imported or speaks another interface."""


class PlacementError(MonarchError, RuntimeError):
    """The specs of one launch do not fit on this engine; nothing was started."""


class UnknownEndpoint(MonarchError, AttributeError):
    """A mesh has no endpoint called `name`; `endpoints` are those that it has."""

    def __init__(self, message: str, *, name: str, endpoints: Sequence[str]) -> None:
        super().__init__(message)
        self.name, self.endpoints = name, tuple(endpoints)


class BadArguments(MonarchError, TypeError):
    """Arguments that the endpoint's signature does not take; found before anything is sent."""


class DirectCall(MonarchError, TypeError):
    """An endpoint was called like a method; use one of the verbs."""


class NotPicklable(MonarchError, TypeError):
    """An argument or a result cannot travel; `path` leads to the part that cannot."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (_not_picklable, (str(self), self.path))


def _not_picklable(message: str, path: str) -> NotPicklable:
    return NotPicklable(message, path=path)


class CallTimeout(MonarchError, TimeoutError):
    """No answer in time. The call goes on; the same future can be asked again."""


class CallCancelled(MonarchError, RuntimeError):
    """The future was cancelled by its caller; the endpoint may still run."""


class ActorError(MonarchError):
    """What happened on one rank: `actor` is the mesh's name, `rank` the coordinates, `endpoint` the call or None."""

    def __init__(self, message: str, *, actor: str, rank: Mapping[str, int], endpoint: str | None = None) -> None:
        super().__init__(message)
        self.actor, self.rank, self.endpoint = actor, rank, endpoint


class EndpointError(ActorError, RuntimeError):
    """An endpoint raised.

    `type_name`, `message` and `remote_traceback` are always there. Where the exception survived a round trip that
    its sender verified, `original` holds it and this error is also an instance of the original's class.
    """

    type_name: str = ""
    message: str = ""
    remote_traceback: str = ""
    original: BaseException | None = None


class ConstructorError(EndpointError):
    """An actor's constructor raised; the rank has no actor and answers every call with this."""


class ActorStopped(ActorError, RuntimeError):
    """The mesh was stopped before the call; it did not run."""


class ActorDied(ActorError, ConnectionError):
    """The process of one rank died while the call was under way; it may have run.

    `exit_code` and `signal` say how (both None where the engine could not learn it in time), `last_output` holds the
    last lines of its standard error.
    """

    exit_code: int | None = None
    signal: int | None = None
    last_output: tuple[str, ...] = ()


class ActorGone(ActorDied):
    """The process of one rank had died before the call was made; the call did not run."""


class CallFailed(MonarchError, ExceptionGroup[Exception]):
    """A call over several ranks failed on some of them; its message names the first cause.

    `results`, `errors` and `pending` are by rank: what came back, what was raised, which had not answered yet.
    """

    results: Mapping[int, Any]
    errors: Mapping[int, Exception]
    pending: tuple[int, ...]

    def derive(self, excs: Sequence[Exception], /) -> CallFailed:  # type: ignore[override]
        part = CallFailed(self.message, excs)
        part.results, part.errors, part.pending = self.results, self.errors, self.pending
        return part
