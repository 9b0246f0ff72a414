"""Named dimensions: points, and the part of a mesh that a slice selects. No I/O.

A slice is positional in what it is taken of, as with arrays. A point keeps its full coordinates in the whole mesh,
whatever slice it was reached through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod


class Point(Mapping[str, int]):
    """Coordinates of one rank in a whole mesh; a mapping from dimension to index."""

    __slots__ = ("_coordinates", "extent")

    def __init__(self, coordinates: Mapping[str, int], extent: Mapping[str, int]) -> None:
        self._coordinates, self.extent = dict(coordinates), dict(extent)

    @property
    def rank(self) -> int:
        """Row-major position in the whole mesh."""
        rank = 0
        for name, size in self.extent.items():
            rank = rank * size + self._coordinates[name]
        return rank

    def size(self, dim: str) -> int:
        """Size of one dimension of the whole mesh."""
        return self.extent[dim]

    def __getitem__(self, dim: str) -> int:
        return self._coordinates[dim]

    def __iter__(self) -> Iterator[str]:
        return iter(self._coordinates)

    def __len__(self) -> int:
        return len(self._coordinates)

    def __hash__(self) -> int:
        return hash(frozenset(self._coordinates.items()))

    def __repr__(self) -> str:
        return repr(self._coordinates)

    def __reduce__(self) -> tuple[type[Point], tuple[dict[str, int], dict[str, int]]]:
        return Point, (self._coordinates, self.extent)


@dataclass(frozen=True, slots=True)
class Selection:
    """Part of a mesh: for every dimension of the whole the indices selected, or one index that was fixed."""

    whole: Mapping[str, int]
    picks: Mapping[str, range | int]

    @classmethod
    def all(cls, extent: Mapping[str, int]) -> Selection:
        """Everything."""
        return cls(dict(extent), {name: range(size) for name, size in extent.items()})

    @property
    def extent(self) -> dict[str, int]:
        """The dimensions that are left, with their sizes."""
        return {name: len(pick) for name, pick in self.picks.items() if isinstance(pick, range)}

    @property
    def size(self) -> int:
        """How many ranks."""
        return prod(self.extent.values())

    def slice(self, **dims: int | slice) -> Selection:
        """Narrow: an int fixes a dimension, a slice keeps part of it; positions count in this selection."""
        picks = dict(self.picks)
        for name, index in dims.items():
            pick = picks.get(name)
            if not isinstance(pick, range):
                left = ", ".join(f"{dim}: {size}" for dim, size in self.extent.items()) or "none"
                raise KeyError(f"no dimension {name!r} to slice; there are {left}")
            picks[name] = _narrow(name, pick, index)
        return Selection(self.whole, picks)

    def points(self) -> list[Point]:
        """The selected ranks' coordinates in the whole, in row-major order."""
        axes = [pick if isinstance(pick, range) else (pick,) for pick in self.picks.values()]
        return [Point(dict(zip(self.picks, indices, strict=True)), self.whole) for indices in product(*axes)]

    def ranks(self) -> tuple[int, ...]:
        """The selected ranks' positions in the whole, in row-major order."""
        return tuple(point.rank for point in self.points())


def _narrow(name: str, pick: range, index: int | slice) -> range | int:
    if isinstance(index, slice):
        part = pick[index]
        if not part:
            raise IndexError(f"slice {index} of {name!r}, of size {len(pick)}, selects nothing")
        return part
    try:
        return pick[index]
    except IndexError:
        raise IndexError(f"index {index} of {name!r} is out of range; its size is {len(pick)}") from None
