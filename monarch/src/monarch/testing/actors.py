"""The plain actor class that the conformance kit launches; it imports nothing of the package."""

from __future__ import annotations

import asyncio
import os
from typing import Any

ENDPOINTS = (
    "add",
    "append",
    "boom",
    "echo",
    "environ",
    "later",
    "log",
    "pid",
    "total",
)


class Probe:
    """Counts, echoes and fails on demand."""

    def __init__(self, start: int = 0, *, fail: str = "") -> None:
        # Read in the constructor: the environment has to be there before user code.
        self.environment = dict(os.environ)
        if fail:
            raise ValueError(fail)
        self.value = start
        self.entries: list[int] = []

    def add(self, by: int, *, times: int = 1) -> int:
        self.value += by * times
        return self.value

    def total(self) -> int:
        return self.value

    def append(self, entry: int) -> None:
        self.entries.append(entry)

    def log(self) -> list[int]:
        return self.entries

    def boom(self, text: str) -> None:
        raise ValueError(text)

    def echo(self, value: Any) -> Any:
        return value

    async def later(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    def environ(self, name: str) -> str | None:
        return self.environment.get(name)

    def pid(self) -> int:
        return os.getpid()

    def hidden(self) -> str:
        """Not among the endpoints of any spec of the kit."""
        return "hidden"
