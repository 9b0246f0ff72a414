"""The memory plan: a place in one arena for each temporary, shared by those that never live together.

Buffers are placed from the largest on, each at the lowest free place among those that live at the same time, which
comes near the lower bound (the most bytes alive at once) on the graphs of neural networks. `check` proves a plan
without knowing how it was made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from executor import ir
from executor.compiler.builder import numbers
from executor.manifest import ALIGNMENT, nbytes


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A temporary: its bytes, and the first and the last step that use it."""

    buffer: int
    size: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether both are alive at some step."""
        return self.first <= other.last and other.first <= self.last


def lifetimes(block: ir.Block) -> list[Lifetime]:
    """Those of the temporaries, in their order."""
    found = []
    for number, buffer in enumerate(block.buffers):
        steps = [place for place, step in enumerate(block.steps) if number in step.buffers]
        if buffer.kind == "temp" and steps:
            size = nbytes(buffer.dtype, numbers(buffer.shape))
            found.append(Lifetime(number, size + -size % ALIGNMENT, steps[0], steps[-1]))
    return found


def planned(block: ir.Block) -> tuple[ir.Block, int]:
    """The block with an offset for each temporary, and the arena's bytes."""
    places: list[tuple[Lifetime, int]] = []
    for wanted in sorted(lifetimes(block), key=lambda t: (-t.size, t.first)):
        taken = sorted((offset, offset + other.size) for other, offset in places if other.meets(wanted))
        offset = 0
        for start, end in taken:
            if start - offset >= wanted.size:
                break
            offset = max(offset, end)
        places.append((wanted, offset))
    offsets = {lifetime.buffer: offset for lifetime, offset in places}
    buffers = tuple(replace(buffer, offset=offsets.get(number)) for number, buffer in enumerate(block.buffers))
    made = replace(block, buffers=buffers)
    arena = max((offset + lifetime.size for lifetime, offset in places), default=0)
    check(made, arena)
    return made, arena


def check(block: ir.Block, arena: int) -> None:
    """Prove that no temporary leaves the arena, none is read before it is written, and none overlaps one that is alive.

    By walking through the steps with the set of bytes that each buffer owns; AssertionError if the plan is wrong.
    """
    last = {buffer: place for place, step in enumerate(block.steps) for buffer in step.buffers}
    alive: dict[int, range] = {}
    for place, step in enumerate(block.steps):
        for number in step.buffers:
            buffer = block.buffers[number]
            if buffer.kind != "temp" or number in alive:
                continue
            assert isinstance(buffer.offset, int), f"{buffer.name} has no place"
            own = range(buffer.offset, buffer.offset + nbytes(buffer.dtype, numbers(buffer.shape)))
            assert 0 <= own.start <= own.stop <= arena, f"{buffer.name} at {own} of {arena}"
            assert own.start % ALIGNMENT == 0, f"{buffer.name} at {own}"
            for other, taken in alive.items():
                assert own.stop <= taken.start or taken.stop <= own.start, (
                    f"{buffer.name} on {block.buffers[other].name}"
                )
            alive[number] = own
        alive = {number: own for number, own in alive.items() if last[number] > place}
