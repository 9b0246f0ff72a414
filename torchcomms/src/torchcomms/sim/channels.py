"""The links of a simulated cluster: who uses them until when, and how much went over them."""

from __future__ import annotations

from torchcomms.sim.report import Hot


class Channels:
    """Links of one kind, by number: each serves one message after another."""

    __slots__ = ("busy", "free", "name", "nbytes")

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.free = [0.0] * count
        self.busy = [0.0] * count
        self.nbytes = [0.0] * count

    def take(self, index: int, moment: float, seconds: float, nbytes: float) -> float:
        """Use a link for so long, from `moment` on or when it is free; returns when that begins."""
        free = self.free[index]
        begin = moment if moment > free else free
        self.free[index] = begin + seconds
        self.busy[index] += seconds
        self.nbytes[index] += nbytes
        return begin

    def hottest(self, alike: int) -> Hot | None:
        """The link in use longest; `alike` links stand behind each."""
        if not self.busy or not max(self.busy):
            return None
        index = max(range(len(self.busy)), key=self.busy.__getitem__)
        return Hot(f"{self.name} {index}", round(self.nbytes[index]), self.busy[index], alike)
