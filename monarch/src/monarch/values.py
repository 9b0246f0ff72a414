"""A ValueMesh: one value a rank, addressed by named dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from monarch.shape import Point, Selection

T = TypeVar("T")


class ValueMesh(Generic[T]):
    """The values of a call, in rank order. Slices like a mesh; items carry full coordinates."""

    def __init__(self, selection: Selection, values: Sequence[T]) -> None:
        self._selection, self._values = selection, list(values)

    @property
    def extent(self) -> Mapping[str, int]:
        """The dimensions, with their sizes."""
        return self._selection.extent

    def values(self) -> list[T]:
        """The values in rank order."""
        return list(self._values)

    def items(self) -> list[tuple[Point, T]]:
        """Full coordinates and value, in rank order."""
        return list(zip(self._selection.points(), self._values, strict=True))

    def item(self, **coords: int) -> T:
        """The one value at these coordinates, as `items` gives them; dimensions of one index may be left out."""
        found = [value for point, value in self.items() if coords.items() <= point.items()]
        if len(found) != 1:
            raise KeyError(f"{coords} is the place of {len(found)} values, not of one; the extent is {self.extent}")
        return found[0]

    def slice(self, **dims: int | slice) -> ValueMesh[T]:
        """Part of the values; positions count in this mesh, as in the slice of any mesh."""
        part = self._selection.slice(**dims)
        values = dict(zip(self._selection.ranks(), self._values, strict=True))
        return ValueMesh(part, [values[rank] for rank in part.ranks()])

    def __iter__(self) -> Iterator[T]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ValueMesh({self.extent}, {self._values!r})"
