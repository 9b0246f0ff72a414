"""Symmetries: moves of the ranks that map a schedule and the cluster onto themselves.

Ranks that a symmetry maps onto each other do the same at the same times, so one of them stands for all: a ring over a
hundred thousand ranks is simulated by the ranks of one host. A move takes whole cells (hosts or pods) to others and no
cell to itself, so ranks that share a channel are all simulated. What is claimed is checked: `holds` compares what ranks
post, move by move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchcomms.sim.ghosts import GhostGroup
from torchcomms.sim.ticket import SimTicket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchcomms.algorithms.choice import Table
    from torchcomms.algorithms.schedule import Schedule
    from torchcomms.backend import P2P


@dataclass(frozen=True, slots=True)
class Symmetry:
    """Moves of `size` ranks in cells of `cell`: none, rotations by cells, or flips of bits of the cell's number.

    `fold(source, target)` is the move that takes `target` into the first cell, applied to both.
    """

    kind: str
    size: int
    cell: int

    @property
    def representatives(self) -> int:
        """How many ranks, from 0, stand for all."""
        return self.size if self.kind == "none" else self.cell

    def fold(self, source: int, target: int) -> tuple[int, int]:
        """Both after the move that takes the target to its representative."""
        if self.kind == "none":
            return source, target
        place = target % self.cell
        if self.kind == "rotation":
            return (source - target + place) % self.size, place
        return ((source // self.cell) ^ (target // self.cell)) * self.cell + source % self.cell, place

    def image(self, rank: int, cells: int) -> int:
        """Where the move numbered `cells` takes a rank."""
        if self.kind == "rotation":
            return (rank + cells * self.cell) % self.size
        return ((rank // self.cell) ^ cells) * self.cell + rank % self.cell


def rotation(size: int, cell: int) -> Symmetry:
    """All cells move on by one, the last to the first."""
    return Symmetry("rotation" if size > cell and size % cell == 0 else "none", size, cell)


def flips(size: int, cell: int) -> Symmetry:
    """Bits of the cells' numbers change; no symmetry unless their count is a power of two."""
    cells = size // cell
    return Symmetry("flips" if cells > 1 and not cells & (cells - 1) and size % cell == 0 else "none", size, cell)


def none(size: int) -> Symmetry:
    """Every rank for itself."""
    return Symmetry("none", size, size)


class Recorder(GhostGroup):
    """A rank that only writes down what it posts and works: no time passes and no other rank is there."""

    def __init__(self, rank: int, size: int, choices: Table | None = None) -> None:
        super().__init__(rank, size, choices)
        self.course: list[tuple[str, int, float]] = []

    def post(self, batch: Sequence[P2P]) -> SimTicket:
        """Write the messages down."""
        self.course += [(one.kind, one.peer, one.tensor.nbytes) for one in batch]
        return SimTicket(0)

    def copied(self, nbytes: float) -> None:
        self.course.append(("copy", self.rank, nbytes))

    def reduced(self, nbytes: float) -> None:
        self.course.append(("reduce", self.rank, nbytes))


def course(
    rank: int, size: int, schedule: Callable[[GhostGroup], Schedule], choices: Table | None = None
) -> list[tuple[str, int, float]]:
    """Everything that a rank does in a schedule, in order: (send, recv, copy or reduce; rank; bytes)."""
    recorder = Recorder(rank, size, choices)
    for ticket in schedule(recorder):
        recorder.course.append(("wait", rank, 0))
        assert ticket.test()
    return recorder.course


def holds(
    symmetry: Symmetry,
    schedule: Callable[[GhostGroup], Schedule],
    moves: Iterable[int],
    choices: Table | None = None,
) -> bool:
    """Whether every given move takes the course of each representative to the course of the rank that it goes to."""
    if symmetry.kind == "none":
        return True
    own = [course(rank, symmetry.size, schedule, choices) for rank in range(symmetry.representatives)]
    for cells in moves:
        for rank, steps in enumerate(own):
            moved = [(kind, symmetry.image(peer, cells), nbytes) for kind, peer, nbytes in steps]
            if moved != course(symmetry.image(rank, cells), symmetry.size, schedule, choices):
                return False
    return True
