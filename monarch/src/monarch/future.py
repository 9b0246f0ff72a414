"""A Future: the answer to a call, for callers that wait and callers that await."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monarch.engine.reactor import Reactor, running_loop
from monarch.errors import CallCancelled, CallTimeout

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


class Future(Generic[T]):
    """The answer to a call that is under way; made by the verbs of an endpoint.

    `name` says what is awaited. The answer is unpacked by whoever first asks for it, in that thread.
    """

    def __init__(self, reactor: Reactor | None, unpack: Callable[[], T], name: str) -> None:
        self._reactor, self._unpack, self.name = reactor, unpack, name
        self._settled = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._unpacked = False
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @classmethod
    def of(cls, unpack: Callable[[], T], name: str) -> Future[T]:
        """A future whose answer is there."""
        future = cls(None, unpack, name)
        future._settled = True
        return future

    def done(self) -> bool:
        """Whether the answer, an error or a cancellation is there; does not wait."""
        if not self._settled and self._reactor is not None:
            self._reactor.poll_now()
        return self._settled

    def get(self, timeout: float | None = None) -> T:
        """Wait for the answer, `timeout` seconds at most (None: for ever); raises what the call raised, or CallTimeout.

        After a timeout the call goes on and the future can be asked again.
        """
        self._wait(timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait like `get`; the error instead of raising it, None where there is none."""
        self._wait(timeout)
        with suppress(Exception):
            self._outcome()
        return self._error

    def cancel(self) -> bool:
        """Stop waiting: the future raises CallCancelled. The endpoint may still run. False if it was done before."""
        if self._settled:
            return False
        self._error, self._unpacked = CallCancelled(f"{self.name} was cancelled by its caller"), True
        self.settle()
        return True

    def settle(self) -> None:
        """For the engine: the answer is there."""
        with self._lock:
            self._settled = True
            waiters, self._waiters = self._waiters, []
        here = running_loop() if waiters else None
        for loop, waiter in waiters:
            if loop is here:
                _finish(waiter)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_finish, waiter)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._settled and self._reactor is not None:
            loop = running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            with self._lock:
                if self._settled:
                    waiter.set_result(None)
                self._waiters.append((loop, waiter))
            self._reactor.attach(loop)
            try:
                yield from waiter
            finally:
                self._reactor.detach()
        return self._outcome()

    def _wait(self, timeout: float | None) -> None:
        if self._settled or self._reactor is None:
            return
        if not self._reactor.drive(self._is_settled, timeout):
            raise CallTimeout(f"no answer from {self.name} after {timeout:g} s; the call goes on, ask the future again")

    def _is_settled(self) -> bool:
        return self._settled

    def _outcome(self) -> T:
        with self._lock:
            if not self._unpacked:
                try:
                    self._value = self._unpack()
                except Exception as error:
                    self._error = error
                self._unpacked = True
                del self._unpack
        if self._error is not None:
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[return-value]


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
