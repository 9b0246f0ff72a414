"""Every error that torchcomms raises.

CommsError (Exception)
├── BackendConflict (LookupError)        two distributions provide one backend name
├── BackendInvalid (ImportError)         a provider does not import, or does not meet the contract
├── BackendNotFound (LookupError)        no distribution provides that backend name
├── CacheRefused (ValueError)             a cached tuning is damaged, or of another machine
├── CollectiveMismatch (ValueError)      ranks called different collectives
├── CommsAborted (RuntimeError)          this rank aborted the group, or the group is unusable after an error
├── CommsClosed (RuntimeError)           the backend or communicator was closed, or belongs to another process
├── CommsTimeout (TimeoutError)          a deadline passed; names the ranks that are missing
├── EarlyOverflow (BufferError)          more messages came before their receives than there is room for
├── InvalidCall (ValueError)             a root, peer, list or tensor that the operation cannot take
├── InvalidState (RuntimeError)          the object is not ready for the call, or past it
├── MeasurementFailed (RuntimeError)      the ranks that were started for a measurement failed
├── MessageMismatch (ValueError)         a message has another length than the receive that it matches
├── NanDetected (RuntimeError)           an operation was about to send a NaN, and a hook watched for it
├── NoRendezvous (LookupError)           neither a store nor the environment says where the group meets
├── PeerFailed (ConnectionError)         ranks died or left while they were needed
├── UnsupportedReduction (TypeError)     the reduction has no meaning for the dtype
└── UnsupportedTensor (TypeError)        a device, layout or dtype that the backend cannot move

Facts are attributes; the message says what happened, what was seen and what to do. All of them pickle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def name_ranks(ranks: Iterable[int]) -> str:
    """The words "rank 3" or "ranks 1, 3"."""
    listed = sorted(ranks)
    return f"rank{'s' if len(listed) != 1 else ''} {', '.join(map(str, listed))}"


class CommsError(Exception):
    """The root of the tree: catch it to catch everything from this package."""


class BackendConflict(CommsError, LookupError):
    """Uninstall one of `distributions`, which provide the same backend `name`."""

    def __init__(self, message: str, *, name: str = "", distributions: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.name, self.distributions = name, distributions


class BackendInvalid(CommsError, ImportError):
    """The provider of `backend` does not import (the cause is chained) or does not meet the contract."""

    def __init__(self, message: str, *, backend: str = "") -> None:
        super().__init__(message)
        self.backend = backend


class BackendNotFound(CommsError, LookupError):
    """No provider of `name`; `known` are the names there are."""

    def __init__(self, message: str, *, name: str = "", known: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.name, self.known = name, known


class CacheRefused(CommsError, ValueError):
    """The cached tuning at `path` cannot be used; run `torchcomms tune` again, or delete it."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class CollectiveMismatch(CommsError, ValueError):
    """Ranks called different collectives: `calls` maps each rank to what it called. Make the ranks agree."""

    def __init__(self, message: str, *, calls: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.calls = dict(calls or {})


class CommsAborted(CommsError, RuntimeError):
    """The group was aborted on this rank for `reason`. Close it and make a new one."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class CommsClosed(CommsError, RuntimeError):
    """The backend or communicator is closed here. Make a new one."""


class CommsTimeout(CommsError, TimeoutError):
    """A deadline passed while `missing` ranks had not done their part. The ticket may be waited again.

    `calls` maps the ranks that are known to have come to the collective that they wait in.
    """

    def __init__(self, message: str, *, missing: Iterable[int] = (), calls: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.missing, self.calls = frozenset(missing), dict(calls or {})


class EarlyOverflow(CommsError, BufferError):
    """Messages of more than `limit` bytes wait for receives that nobody has posted; the last came from `peer`."""

    def __init__(self, message: str, *, peer: int = -1, limit: int = 0) -> None:
        super().__init__(message)
        self.peer, self.limit = peer, limit


class InvalidCall(CommsError, ValueError):
    """An argument that the operation cannot take; nothing was sent."""


class InvalidState(CommsError, RuntimeError):
    """The object is not ready for the call, or past it: a communicator without a group, a window without memory."""


class MeasurementFailed(CommsError, RuntimeError):
    """The ranks that were started for a measurement failed; the message ends with what they said."""


class MessageMismatch(CommsError, ValueError):
    """A message of `actual` bytes from `peer` met a receive of `expected` bytes on `tag`."""

    def __init__(self, message: str, *, peer: int = -1, tag: int = 0, expected: int = 0, actual: int = 0) -> None:
        super().__init__(message)
        self.peer, self.tag, self.expected, self.actual = peer, tag, expected, actual


class NanDetected(CommsError, RuntimeError):
    """A tensor of `operation` holds `count` NaN; nothing was sent by this rank."""

    def __init__(self, message: str, *, operation: str = "", count: int = 0) -> None:
        super().__init__(message)
        self.operation, self.count = operation, count


class NoRendezvous(CommsError, LookupError):
    """Pass store=, rank= and size=, or start the ranks with `torchcomms run`; `variables` are the ones not set."""

    def __init__(self, message: str, *, variables: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.variables = variables


class PeerFailed(CommsError, ConnectionError):
    """`ranks` died, or left while this rank still needed them. Close the group and make one of the survivors."""

    def __init__(self, message: str, *, ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = frozenset(ranks)


class UnsupportedReduction(CommsError, TypeError):
    """Reduction `op` has no meaning for `dtype`. Convert the tensor or choose another reduction."""

    def __init__(self, message: str, *, op: str = "", dtype: str = "") -> None:
        super().__init__(message)
        self.op, self.dtype = op, dtype


class UnsupportedTensor(CommsError, TypeError):
    """A tensor whose device, layout or dtype the backend cannot move."""
