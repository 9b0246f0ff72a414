"""The algebra of slicing: positions compose, coordinates are never lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.shape import Point, Selection
from monarch.values import ValueMesh

pytestmark = pytest.mark.unit

EXTENTS = st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1, max_size=3)


@st.composite
def selections(draw: st.DrawFn) -> Selection:
    """A whole mesh, narrowed a few times."""
    selection = Selection.all(draw(EXTENTS))
    for _ in range(draw(st.integers(0, 3))):
        if selection.extent:
            name = draw(st.sampled_from(sorted(selection.extent)))
            selection = selection.slice(**{name: draw(indices(selection.extent[name]))})
    return selection


def indices(size: int) -> st.SearchStrategy[int | slice]:
    parts = st.tuples(st.integers(0, size - 1), st.integers(1, size), st.integers(1, 2))
    return st.one_of(
        st.integers(-size, size - 1), parts.filter(lambda p: p[0] < p[1]).map(lambda p: slice(p[0], p[1], p[2]))
    )


@given(EXTENTS)
def test_ranks_of_a_whole_are_row_major(extent: dict[str, int]) -> None:
    whole = Selection.all(extent)
    assert whole.ranks() == tuple(range(whole.size))
    assert [tuple(point.values()) for point in whole.points()] == sorted(tuple(p.values()) for p in whole.points())


@given(selections())
def test_points_keep_every_coordinate_of_the_whole(selection: Selection) -> None:
    for point in selection.points():
        assert list(point) == list(selection.whole)
        assert point.extent == selection.whole
    assert len(set(selection.ranks())) == selection.size


@given(selections(), st.data())
def test_slice_selects_what_indexing_an_array_would(selection: Selection, data: st.DataObject) -> None:
    if not selection.extent:
        return
    name = data.draw(st.sampled_from(sorted(selection.extent)))
    index = data.draw(indices(selection.extent[name]))
    axis = sorted({point[name] for point in selection.points()})[index]
    kept = axis if isinstance(axis, list) else [axis]
    expected = [point for point in selection.points() if point[name] in kept]
    assert selection.slice(**{name: index}).points() == expected


@given(selections(), st.data())
def test_slices_of_different_dimensions_commute(selection: Selection, data: st.DataObject) -> None:
    if len(selection.extent) < 2:
        return
    first, second = sorted(selection.extent)[:2]
    cut = {name: data.draw(indices(selection.extent[name])) for name in (first, second)}
    one_by_one = selection.slice(**{second: cut[second]}).slice(**{first: cut[first]})
    assert selection.slice(**cut) == one_by_one


@given(selections())
def test_slice_of_everything_changes_nothing(selection: Selection) -> None:
    assert selection.slice(**{name: slice(None) for name in selection.extent}) == selection


@given(selections())
def test_values_are_found_by_the_coordinates_of_their_items(selection: Selection) -> None:
    values = ValueMesh(selection, selection.ranks())
    assert all(values.item(**point) == value == point.rank for point, value in values.items())
    assert values.values() == list(values) == [value for _, value in values.items()]


@given(selections(), st.data())
def test_values_slice_like_their_mesh(selection: Selection, data: st.DataObject) -> None:
    cut = {name: data.draw(indices(size)) for name, size in selection.extent.items()}
    part = ValueMesh(selection, selection.ranks()).slice(**cut)
    assert part.values() == list(selection.slice(**cut).ranks())
    assert part.extent == selection.slice(**cut).extent


def test_errors_of_slicing_say_what_there_is() -> None:
    whole = Selection.all({"hosts": 1, "procs": 4})
    with pytest.raises(KeyError, match="no dimension 'gpus' to slice; there are hosts: 1, procs: 4"):
        whole.slice(gpus=0)
    with pytest.raises(IndexError, match="index 4 of 'procs' is out of range; its size is 4"):
        whole.slice(procs=4)
    with pytest.raises(IndexError, match="selects nothing"):
        whole.slice(procs=slice(3, 2))
    with pytest.raises(KeyError, match="no dimension 'procs'"):
        whole.slice(procs=0).slice(procs=0)


def test_item_needs_the_place_of_one_value() -> None:
    values = ValueMesh(Selection.all({"hosts": 1, "procs": 2}), ["a", "b"])
    assert values.item(procs=1) == "b"
    with pytest.raises(KeyError, match="the place of 2 values"):
        values.item(hosts=0)


def test_point_is_a_mapping_with_rank_and_sizes() -> None:
    point = Point({"a": 1, "b": 2}, {"a": 2, "b": 3})
    assert (dict(point), point.rank, point.size("b")) == ({"a": 1, "b": 2}, 5, 3)
    assert point == {"a": 1, "b": 2}
