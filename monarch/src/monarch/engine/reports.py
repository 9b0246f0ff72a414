"""Exceptions across processes: what a report holds, and the error that a caller gets from it.

Type name, message, traceback and notes always arrive. The exception itself goes along only if its sender could load
its own pickle and got the same back.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MemberDescriptorType
from typing import Any

from monarch.engine.pickling import dumps_quietly, loads
from monarch.errors import ConstructorError, EndpointError


@dataclass(frozen=True, slots=True)
class Report:
    """An exception as data."""

    type_name: str
    message: str
    traceback: str
    notes: tuple[str, ...]
    pickled: tuple[Any, ...] | None
    constructor: bool = False


def report_of(error: BaseException, *, constructor: bool = False) -> Report:
    """What can be said of an exception elsewhere. Never raises, whatever the exception's own methods do."""
    # The first frames are the engine's own.
    text = "".join(traceback.format_exception(type(error), error, _user_part(error)))
    notes = tuple(str(note) for note in getattr(error, "__notes__", ()))
    return Report(_name(type(error)), _message(error), text, notes, _verified(error), constructor)


def error_from(report: Report, *, actor: str, rank: Mapping[str, int], endpoint: str | None) -> EndpointError:
    """The caller's error; also an instance of the original's class where that came along and allows it."""
    kind = ConstructorError if report.constructor else EndpointError
    what = f"the constructor of {actor}" if report.constructor else f"{actor}.{endpoint}"
    message = f"{what} on {dict(rank)} raised {report.type_name}: {report.message}"
    original = _original(report)
    error = _dual(kind, original, message, actor=actor, rank=rank, endpoint=endpoint)
    error.type_name, error.message, error.remote_traceback = report.type_name, report.message, report.traceback
    error.original = original
    for note in report.notes:
        error.add_note(note)
    error.add_note("Remote traceback:\n" + report.traceback.rstrip())
    return error


def _original(report: Report) -> Any:
    if report.pickled is None:
        return None
    try:
        return loads(*report.pickled)
    except Exception:
        # It loads where it was raised, but not here: another environment.
        return None


def _user_part(error: BaseException) -> Any:
    position = error.__traceback__
    while position is not None and position.tb_frame.f_globals.get("__name__", "").startswith("monarch.engine"):
        position = position.tb_next
    return position or error.__traceback__


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:
        return f"<no message: its __str__ raised {type(broken).__name__}>"


def _verified(error: BaseException) -> tuple[Any, ...] | None:
    if not isinstance(error, Exception):
        return None
    packed = dumps_quietly(error)
    if packed is None:
        return None
    pieces = (bytes(packed.body), [bytes(buffer) for buffer in packed.buffers])
    try:
        back = loads(*pieces)
        same = type(back) is type(error) and str(back) == str(error)
    except Exception:
        return None
    return pieces if same else None


def _dual(kind: type[EndpointError], original: Any, message: str, **facts: Any) -> EndpointError:
    """An instance of our class and of the original's, with the original's attributes; ours alone where that fails."""
    error = kind(message, **facts)
    # A StopIteration cannot leave a coroutine; what is ours already needs no second class.
    if original is None or isinstance(original, (StopIteration, StopAsyncIteration, kind)):
        return error
    try:
        both = _dual_class(kind, type(original))
        # The original's own, for its memory layout; no __init__, which may want other arguments.
        dual: EndpointError = type(original).__new__(both, *original.args)
        _copy_members(original, dual)
        dual.__dict__.update(original.__dict__)
        dual.__dict__.pop("__notes__", None)
        dual.__dict__.update(error.__dict__)
        dual.args = error.args
        str(dual)
    except Exception:
        return error
    return dual


def _dual_class(kind: type[EndpointError], other: type) -> type[EndpointError]:
    members = {"__str__": kind.__str__, "__module__": other.__module__, "__doc__": other.__doc__}
    return type(other.__name__, (kind, other), members)


def _copy_members(original: BaseException, dual: BaseException) -> None:
    """What builtin exceptions keep outside `__dict__`, such as errno."""
    for cls in type(original).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, MemberDescriptorType):
                with suppress(AttributeError, TypeError):
                    setattr(dual, name, getattr(original, name))
