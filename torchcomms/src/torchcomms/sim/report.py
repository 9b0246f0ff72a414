"""What a simulation says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hot:
    """A link that is in use: `busy` seconds of the whole time, and how many links like it there are."""

    name: str
    nbytes: int
    busy: float
    alike: int


@dataclass(frozen=True, slots=True)
class Report:
    """One schedule on one cluster.

    `seconds` until the last rank is through; `nbytes` and `messages` by class of link ("inside", "between", "spine"),
    over all ranks; `reduced` bytes folded and `copied` bytes copied by the busiest rank; `hot`: the links that were in
    use longest, longest first; `simulated` ranks stood for all `ranks`.
    """

    seconds: float
    ranks: int
    simulated: int
    messages: Mapping[str, int]
    nbytes: Mapping[str, int]
    copied: int
    reduced: int
    hot: tuple[Hot, ...]

    def __str__(self) -> str:
        moved = ", ".join(
            f"{self.messages[kind]} messages with {self.nbytes[kind]} bytes {kind}" for kind in self.messages
        )
        hottest = f"; busiest: {self.hot[0].name}, {self.hot[0].busy / self.seconds:.0%}" if self.hot else ""
        return f"{self.ranks} ranks: {self.seconds * 1e6:.1f} µs; {moved or 'no messages'}{hottest}"
