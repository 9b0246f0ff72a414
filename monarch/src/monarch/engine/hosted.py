"""One actor in its process: how it is made, and how one call to it is run and answered."""

from __future__ import annotations

import importlib
import pickle
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from monarch.endpoint import EndpointInfo, describe
from monarch.engine.child import Place, leave
from monarch.engine.credits import Acknowledgements
from monarch.engine.framing import Frame, Kind
from monarch.engine.pickling import Packed, dumps, loads
from monarch.engine.reports import Report, report_of
from monarch.engine.wire import Wire


@dataclass(frozen=True, slots=True)
class Request:
    """What a CREATE frame holds: the class or its path, its arguments and the endpoints; the same for all ranks.

    A rank's own place is a pickle in the frame's last buffer.
    """

    actor: str | type
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    endpoints: tuple[str, ...] | None


@dataclass(slots=True)
class Creation:
    """A request that was read, with the class's endpoints; `broken` where that failed already."""

    call: int
    place: Place
    request: Request | None = None
    cls: type | None = None
    table: dict[str, EndpointInfo] = field(default_factory=dict)
    broken: Report | None = None

    @property
    def any_async(self) -> bool:
        return any(info.is_async for info in self.table.values())

    @property
    def only_async(self) -> bool:
        return bool(self.table) and all(info.is_async for info in self.table.values())


def create(frame: Frame) -> Creation:
    """Read a CREATE frame and find the class; never raises, for what fails belongs in the answer."""
    creation = Creation(frame.call, pickle.loads(frame.buffers.pop()))
    try:
        creation.request = request = loads(frame.body, frame.buffers)
        creation.cls = _find(request.actor)
        creation.table = describe(creation.cls, request.endpoints)
    except Exception as error:
        creation.broken = report_of(error, constructor=True)
    return creation


def _find(actor: str | type) -> type:
    if isinstance(actor, type):
        return actor
    module, _, path = actor.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    if not isinstance(found, type):
        raise TypeError(f"{actor} is {found!r}, not a class")
    return found


class Hosted:
    """An actor that is being served on `wire`."""

    def __init__(self, wire: Wire, stop: threading.Event) -> None:
        self.wire, self._stop = wire, stop
        self.table: dict[str, EndpointInfo] = {}
        self._name, self._instance = "actor", None
        self._broken: Report | None = None
        self._acknowledgements = Acknowledgements()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def construct(self, creation: Creation) -> None:
        """Run the constructor and answer; after a failure every call is answered with it."""
        self.table, self._name, self._broken = creation.table, creation.place.actor, creation.broken
        if self._broken is None:
            assert creation.cls is not None
            assert creation.request is not None
            try:
                self._instance = creation.cls(*creation.request.args, **creation.request.kwargs)
            except SystemExit as error:
                self.exit(error)
            except BaseException as error:
                self._broken = report_of(error, constructor=True)
        # The arguments live on only as far as the instance keeps them.
        creation.request = None
        if self._broken is None:
            self.wire.send(Kind.VALUE, creation.call, dumps(self.table, "endpoints"))
        else:
            self.wire.send(Kind.ERROR, creation.call, _packed(self._broken))

    def run(self, frame: Frame, *, more: bool = False) -> None:
        """Run a sync endpoint and answer. With `more`, the answer may wait for the next."""
        try:
            _, method, args, kwargs = self.open(frame)
        except Exception as error:
            self.fail(frame, error, more)
        else:
            self.run_opened(frame, method, args, kwargs, more=more)

    def run_opened(self, frame: Frame, method: Any, args: Any, kwargs: Any, *, more: bool = False) -> None:
        """The same for a call whose arguments were unpacked."""
        try:
            value = method(*args, **kwargs)
        except SystemExit as error:
            self.exit(error)
        except BaseException as error:
            self.fail(frame, error, more)
        else:
            self.succeed(frame, value, more)

    async def run_async(self, frame: Frame, method: Any, args: Any, kwargs: Any) -> None:
        """Run an async endpoint and answer."""
        try:
            value = await method(*args, **kwargs)
        except SystemExit as error:
            self.exit(error)
        except BaseException as error:
            self.fail(frame, error, True)
        else:
            self.succeed(frame, value, True)

    def open(self, frame: Frame) -> tuple[str, Any, tuple[Any, ...], dict[str, Any]]:
        """Name, method and arguments of a call."""
        name, args, kwargs = loads(frame.body, frame.buffers)
        return name, getattr(self._instance, name) if self._broken is None else _never, args, kwargs

    def succeed(self, frame: Frame, value: Any, more: bool) -> None:
        """Answer with a value, or with what keeps it from travelling."""
        if frame.kind == Kind.CAST:
            self._acknowledge(frame, more)
            return
        try:
            packed = dumps(value, f"the result of {self._name}")
        except Exception as error:
            self.fail(frame, error, more)
        else:
            self.wire.send(Kind.VALUE, frame.call, packed, hold=more)

    def fail(self, frame: Frame, error: BaseException, more: bool) -> None:
        """Answer with an error; that of a broadcast, which nobody awaits, goes to standard error."""
        if frame.kind == Kind.CAST:
            if self._broken is None:
                traceback.print_exception(error)
            self._acknowledge(frame, more)
            return
        report = report_of(error) if self._broken is None else self._broken
        self.wire.send(Kind.ERROR, frame.call, _packed(report), hold=more)

    def exit(self, error: SystemExit) -> NoReturn:
        """End the process as `sys.exit` asks to."""
        self.wire.flush()
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        leave(error.code if isinstance(error.code, int) else int(error.code is not None))

    def _acknowledge(self, frame: Frame, more: bool) -> None:
        total = self._acknowledgements.ran(frame.size)
        if total is not None:
            self.wire.send(Kind.CREDIT, total, hold=more)


def _never(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError("the constructor failed")


def _packed(report: Report) -> Packed:
    return Packed(pickle.dumps(report), [])
