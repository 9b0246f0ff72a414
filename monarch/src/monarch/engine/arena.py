"""Where regions lie in a slab: first fit, lowest address first, neighbours merged. No I/O.

The lowest address first, because pages that were used before are mapped already and cost no page fault.
"""

from __future__ import annotations

from bisect import bisect_left, insort

PAGE = 4096


class Arena:
    """Hands out page-aligned regions of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._free: list[tuple[int, int]] = [(0, size // PAGE * PAGE)]  # (offset, length), by offset, never adjacent
        self._used: dict[int, int] = {}

    @property
    def used(self) -> int:
        """Bytes handed out."""
        return sum(self._used.values())

    def allocate(self, length: int) -> int | None:
        """Offset of a region of at least `length` bytes, or None where no gap is that large."""
        need = max(1, -(-length // PAGE)) * PAGE
        for index, (offset, room) in enumerate(self._free):
            if room >= need:
                self._free[index : index + 1] = [(offset + need, room - need)] if room > need else []
                self._used[offset] = need
                return offset
        return None

    def free(self, offset: int) -> None:
        """Take a region back; KeyError for an offset that is not handed out."""
        length = self._used.pop(offset)
        index = bisect_left(self._free, (offset, 0))
        if index < len(self._free) and self._free[index][0] == offset + length:
            length += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == offset:
            offset, before = self._free.pop(index - 1)
            length += before
        insort(self._free, (offset, length))
