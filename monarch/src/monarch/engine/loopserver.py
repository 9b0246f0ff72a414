"""Serves actors that have async endpoints: a loop reads the socket and starts every endpoint in order."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from monarch.engine.framing import Frame
from monarch.engine.hosted import Creation, Hosted

SyncCall = Callable[[], None]


def serve_async(hosted: Hosted, creation: Creation, frames: list[Frame]) -> None:
    """Serve an actor whose endpoints are all async, its constructor included, on a loop in this thread."""

    async def main() -> None:
        hosted.construct(creation)
        await _Reader(hosted, None).run(frames)

    asyncio.run(main())


def serve_mixed(hosted: Hosted, frames: list[Frame]) -> None:
    """Serve the sync endpoints in this thread, and a loop that reads in another."""
    calls: queue.SimpleQueue[SyncCall | None] = queue.SimpleQueue()
    context = contextvars.copy_context()

    def loop() -> None:
        try:
            context.run(asyncio.run, _Reader(hosted, calls.put).run(frames))
        finally:
            calls.put(None)

    threading.Thread(target=loop, name="actor-loop", daemon=True).start()
    while (call := calls.get()) is not None and not hosted.stopping:
        call()
        del call
        hosted.wire.flush()


class _Reader:
    """Reads frames on the running loop. `run_sync` takes a sync endpoint to the actor's thread."""

    def __init__(self, hosted: Hosted, run_sync: Callable[[SyncCall], None] | None) -> None:
        self._hosted, self._run_sync = hosted, run_sync
        self._mailbox: asyncio.Queue[tuple[Frame, Any, Any, Any]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, frames: list[Frame]) -> None:
        """Serve until the caller closes the socket or the process is stopped."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._keep(self._in_turn())
        loop.add_reader(self._hosted.wire.fileno(), self._readable)
        self._start_all(frames)
        await self._ended
        loop.remove_reader(self._hosted.wire.fileno())

    def _readable(self) -> None:
        frames = self._hosted.wire.receive(socket.MSG_DONTWAIT)
        if frames is None or self._hosted.stopping:
            if not self._ended.done():
                self._ended.set_result(None)
        else:
            self._start_all(frames)

    def _start_all(self, frames: list[Frame]) -> None:
        for frame in frames:
            try:
                name, method, args, kwargs = self._hosted.open(frame)
            except Exception as error:
                self._hosted.fail(frame, error, False)
                continue
            self._start(name, frame, method, args, kwargs)

    def _start(self, name: str, frame: Frame, method: Any, args: Any, kwargs: Any) -> None:
        info = self._hosted.table.get(name)
        if info is not None and not info.is_async and self._run_sync is not None:
            # Through the loop, so that endpoints start in the order of the mailbox whichever kind they are.
            run = self._hosted.run_opened
            asyncio.get_running_loop().call_soon(self._run_sync, lambda: run(frame, method, args, kwargs))
        elif info is not None and info.concurrent:
            self._keep(self._one(frame, method, args, kwargs))
        else:
            self._mailbox.put_nowait((frame, method, args, kwargs))

    async def _in_turn(self) -> None:
        while True:
            await self._one(*await self._mailbox.get())

    async def _one(self, *call: Any) -> None:
        await self._hosted.run_async(*call)
        del call
        asyncio.get_running_loop().call_soon(self._hosted.wire.flush)

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
