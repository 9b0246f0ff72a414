"""Credits: how much a sender may have under way at one actor. No I/O."""

from __future__ import annotations

from collections import deque


class Credits:
    """Bytes and messages under way, against finite limits.

    A message larger than the limit may go when nothing else is under way: it would never go otherwise.
    """

    def __init__(self, limit_bytes: int, limit_messages: int) -> None:
        self.limit_bytes, self.limit_messages = limit_bytes, limit_messages
        self.bytes = self.messages = 0
        self._casts: deque[int] = deque()
        self._acknowledged = 0

    def take(self, size: int) -> bool:
        """Count a message of `size` bytes as under way, or say False where it has to wait."""
        full = self.bytes + size > self.limit_bytes or self.messages >= self.limit_messages
        if full and self.messages:
            return False
        self.bytes += size
        self.messages += 1
        return True

    def give(self, size: int) -> None:
        """A message of `size` bytes was answered."""
        self.bytes -= size
        self.messages -= 1

    def cast(self, size: int) -> None:
        """Remember a message, already taken, that will only be acknowledged."""
        self._casts.append(size)

    def acknowledge(self, total: int) -> None:
        """The receiver has run `total` casts since the beginning."""
        while self._acknowledged < total:
            self._acknowledged += 1
            self.give(self._casts.popleft())


class Acknowledgements:
    """The receiver's side: says when enough casts were run to be worth a frame."""

    def __init__(self, every_bytes: int = 1 << 20, every_messages: int = 64) -> None:
        self._every_bytes, self._every_messages = every_bytes, every_messages
        self._total = self._bytes = self._messages = 0

    def ran(self, size: int) -> int | None:
        """Count one cast; the number to acknowledge, or None where it can wait."""
        self._total += 1
        self._bytes += size
        self._messages += 1
        if self._bytes < self._every_bytes and self._messages < self._every_messages:
            return None
        self._bytes = self._messages = 0
        return self._total
