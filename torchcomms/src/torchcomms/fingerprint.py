"""The fingerprint of a collective call: what all ranks must agree on, in a fixed number of bytes.

Every collective begins by exchanging it, so a rank that calls something else is named on all ranks at once, and a rank
that does not come is known to be the one.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from torchcomms.errors import CollectiveMismatch, name_ranks

_LAYOUT = struct.Struct("<QqIi16s16s24s")
_SITE = 88
SIZE = _LAYOUT.size + _SITE  # bytes
COMPARED = _LAYOUT.size  # bytes; the call site behind them may differ
_HERE = os.path.dirname(__file__) + os.sep


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as one rank called it. `count` is elements, or -1 where ranks need not agree."""

    operation: str
    sequence: int
    dtype: str = ""
    count: int = -1
    sizes: int = 0  # checksum of the lengths in a list
    root: int = -1
    op: str = ""
    site: str = ""

    def pack(self) -> bytes:
        """The call in `SIZE` bytes."""
        names = (self.operation.encode(), self.op.encode(), self.dtype.encode())
        fixed = _LAYOUT.pack(self.sequence, self.count, self.sizes, self.root, *names)
        return fixed + self.site.encode()[-_SITE:].ljust(_SITE, b"\0")

    @classmethod
    def unpack(cls, data: bytes) -> Call:
        """The inverse of `pack`."""
        sequence, count, sizes, root, operation, op, dtype = _LAYOUT.unpack(data[:COMPARED])
        names = [text.rstrip(b"\0").decode(errors="replace") for text in (operation, dtype, op, data[COMPARED:])]
        return cls(names[0], sequence, names[1], count, sizes, root, names[2], names[3])

    def __str__(self) -> str:
        facts = [f"#{self.sequence}", self.op, self.dtype.removeprefix("torch.")]
        facts += [f"{self.count} elements"] if self.count >= 0 else []
        facts += [f"lengths {self.sizes:08x}"] if self.sizes else []
        facts += [f"root {self.root}"] if self.root >= 0 else []
        return f"{self.operation}({', '.join(filter(None, facts))})" + (f" at {self.site}" if self.site else "")


def checksum(lengths: tuple[int, ...]) -> int:
    """A checksum of a list's lengths, never 0."""
    return zlib.crc32(struct.pack(f"<{len(lengths)}Q", *lengths)) or 1


def call_site() -> str:
    """The file and line outside this package that is running now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def arrived(calls: Mapping[int, bytes]) -> dict[int, str]:
    """The calls that have come, worded; a row of zeros has not."""
    return {rank: str(Call.unpack(call)) for rank, call in sorted(calls.items()) if any(call[:8])}


def told(calls: Mapping[int, str], missing: frozenset[int]) -> str:
    """Where the ranks that have come wait, as the end of a sentence; those in `missing` came and did not finish."""
    ranks: dict[tuple[bool, str], list[int]] = {}
    for rank, call in calls.items():
        ranks.setdefault((rank in missing, call), []).append(rank)
    verb = {True: "came to", False: "waits in"}
    return "".join(
        f"; {name_ranks(some)} {verb[late] if late or len(some) == 1 else 'wait in'} {call}"
        for (late, call), some in ranks.items()
    )


def compare(calls: Mapping[int, bytes]) -> None:
    """Raise `CollectiveMismatch` unless all ranks called the same."""
    if len({call[:COMPARED] for call in calls.values()}) == 1:
        return
    told = {rank: str(Call.unpack(call)) for rank, call in sorted(calls.items())}
    groups: dict[bytes, list[int]] = {}
    for rank, call in sorted(calls.items()):
        groups.setdefault(call[:COMPARED], []).append(rank)
    words = [f"{name_ranks(ranks)} called {told[ranks[0]]}" for ranks in groups.values()]
    raise CollectiveMismatch(
        f"ranks called different collectives: {'; '.join(words)}. Make every rank call the same in the same order.",
        calls=told,
    )
