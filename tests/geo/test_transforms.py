"""View <-> world: integers come back as they went, rounding goes outwards, rows run south, crops compose."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfix.geo.boxes import UNIT_MAX, UnitBox, WorldBox
from wayfix.geo.transforms import SNAP, ViewTransform

REACH = 1e7
"""Largest absolute coordinate, metres: more than any UTM northing."""

pixels = st.integers(1, 20_000)


@st.composite
def extents(draw: st.DrawFn, smallest: float = 1.0, largest: float = 100_000.0) -> WorldBox:
    width, height = draw(st.floats(smallest, largest)), draw(st.floats(smallest, largest))
    x, y = draw(st.floats(-REACH, REACH - width)), draw(st.floats(-REACH, REACH - height))
    return WorldBox(x, y, x + width, y + height)


@st.composite
def unit_boxes(draw: st.DrawFn, smallest: int = 1) -> UnitBox:
    x0, y0 = draw(st.integers(0, UNIT_MAX - smallest)), draw(st.integers(0, UNIT_MAX - smallest))
    return x0, y0, draw(st.integers(x0 + smallest, UNIT_MAX)), draw(st.integers(y0 + smallest, UNIT_MAX))


@st.composite
def north_up_views(draw: st.DrawFn) -> ViewTransform:
    return ViewTransform.north_up(draw(extents()), draw(pixels), draw(pixels))


@st.composite
def tilted_views(draw: st.DrawFn) -> ViewTransform:
    """A view with rotation and shear, such as an oblique or a drone image has; never nearly singular."""
    a, e = draw(st.floats(0.05, 2.0)), -draw(st.floats(0.05, 2.0))
    b, d = draw(st.floats(-0.04, 0.04)), draw(st.floats(-0.04, 0.04))
    c, f = draw(st.floats(-1e6, 1e6)), draw(st.floats(-1e6, 1e6))
    return ViewTransform(draw(st.integers(64, 4096)), draw(st.integers(64, 4096)), a, b, c, d, e, f)


# ---- north-up views


@settings(deadline=None, max_examples=500)
@given(north_up_views(), unit_boxes())
def test_integer_box_to_world_and_back_is_the_identity(view: ViewTransform, box: UnitBox) -> None:
    assert view.box_to_unit(view.box_to_world(box)) == box


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from([-1.0, 1.0]),
    st.floats(8_388_609.0, 1e7 - 1.0),
    st.floats(1.0, 2.0),
    st.integers(1, 4096),
    unit_boxes(),
)
def test_the_identity_holds_for_metre_sized_views_at_the_far_end_of_the_range(
    sign: float, far: float, size: float, side: int, box: UnitBox
) -> None:
    x, y = sign * far, -sign * far
    view = ViewTransform.north_up(WorldBox(x, y, x + size, y + size), side, side)
    assert view.box_to_unit(view.box_to_world(box)) == box


@settings(deadline=None)
@given(extents(), pixels, pixels)
def test_a_north_up_view_shows_exactly_its_extent(extent: WorldBox, width: int, height: int) -> None:
    shown = ViewTransform.north_up(extent, width, height).extent
    assert shown.min_x == extent.min_x
    assert shown.max_y == extent.max_y
    assert shown.max_x == pytest.approx(extent.max_x, abs=1e-8)
    assert shown.min_y == pytest.approx(extent.min_y, abs=1e-8)


@settings(deadline=None)
@given(extents(), pixels, pixels, pixels, pixels, unit_boxes())
def test_units_do_not_depend_on_the_image_size(
    extent: WorldBox, w1: int, h1: int, w2: int, h2: int, box: UnitBox
) -> None:
    one = ViewTransform.north_up(extent, w1, h1).box_to_world(box)
    two = ViewTransform.north_up(extent, w2, h2).box_to_world(box)
    assert (one.min_x, one.min_y, one.max_x, one.max_y) == pytest.approx(
        (two.min_x, two.min_y, two.max_x, two.max_y), rel=0, abs=1e-8
    )


def test_row_0_is_north_and_the_upper_left_pixel_corner_is_the_north_west_corner() -> None:
    view = ViewTransform.north_up(WorldBox(1000.0, 2000.0, 1100.0, 2050.0), 200, 100)
    assert view.pixel_to_world(0, 0) == (1000.0, 2050.0)
    assert view.pixel_to_world(200, 100) == (1100.0, 2000.0)
    assert view.unit_to_world(1000, 0) == (1100.0, 2050.0)
    assert view.world_to_unit(1000.0, 2000.0) == (0.0, 1000.0)
    assert view.world_to_pixel(1050.0, 2025.0) == (100.0, 50.0)
    assert view.box_to_world((0, 0, 500, 100)) == WorldBox(1000.0, 2045.0, 1050.0, 2050.0)


@settings(deadline=None)
@given(north_up_views(), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.01, 1.0))
def test_further_north_is_further_up_and_further_east_is_further_right(
    view: ViewTransform, fx: float, fy: float, step: float
) -> None:
    extent = view.extent
    x, y = extent.min_x + fx * extent.width, extent.min_y + fy * extent.height
    u, v = view.world_to_unit(x, y)
    u_east, v_east = view.world_to_unit(x + step * extent.width, y)
    u_north, v_north = view.world_to_unit(x, y + step * extent.height)
    assert u_east > u
    assert v_east == v
    assert v_north < v
    assert u_north == u


@st.composite
def views_and_inner_boxes(draw: st.DrawFn) -> tuple[ViewTransform, WorldBox]:
    view = draw(north_up_views())
    extent = view.extent
    west, south = draw(st.floats(0.0, 0.99)), draw(st.floats(0.0, 0.99))
    east, north = draw(st.floats(west + 1e-5, 1.0)), draw(st.floats(south + 1e-5, 1.0))
    return view, WorldBox(
        extent.min_x + west * extent.width,
        extent.min_y + south * extent.height,
        extent.min_x + east * extent.width,
        extent.min_y + north * extent.height,
    )


@settings(deadline=None, max_examples=300)
@given(views_and_inner_boxes())
def test_world_to_unit_rounds_outwards_and_by_less_than_one_unit(pair: tuple[ViewTransform, WorldBox]) -> None:
    view, box = pair
    found = view.box_to_unit(box)
    assert found is not None
    x0, y0, x1, y1 = found
    covered = view.box_to_world(found)
    unit_x, unit_y = view.extent.width / UNIT_MAX, view.extent.height / UNIT_MAX
    # outwards: each edge covers the box, but for the snap (a millionth of a unit) ...
    for outside in (
        (box.min_x - covered.min_x) / unit_x,
        (covered.max_x - box.max_x) / unit_x,
        (box.min_y - covered.min_y) / unit_y,
        (covered.max_y - box.max_y) / unit_y,
    ):
        assert -3 * SNAP <= outside < 1.0 + 3 * SNAP
    # ... and no smaller integer box does: an edge moved inwards by one leaves a part of the box out
    u0, v0 = view.world_to_unit(box.min_x, box.max_y)
    u1, v1 = view.world_to_unit(box.max_x, box.min_y)
    assert x0 <= u0 + SNAP < x0 + 1 + 2 * SNAP
    assert y0 <= v0 + SNAP < y0 + 1 + 2 * SNAP
    assert x1 - 1 - 2 * SNAP < u1 - SNAP <= x1
    assert y1 - 1 - 2 * SNAP < v1 - SNAP <= y1


def test_rounding_goes_outwards_on_every_side() -> None:
    view = ViewTransform.north_up(WorldBox(0.0, 0.0, 1000.0, 1000.0), 500, 500)
    assert view.box_to_unit(WorldBox(10.4, 20.4, 30.6, 40.6)) == (10, 959, 31, 980)
    assert view.box_to_unit(WorldBox(10.001, 20.001, 10.002, 20.002)) == (10, 979, 11, 980)


def test_rounding_snaps_within_a_millionth_of_a_unit_only() -> None:
    view = ViewTransform.north_up(WorldBox(0.0, 0.0, 1000.0, 1000.0), 500, 500)
    near, off = 0.5e-6, 2e-6
    assert view.box_to_unit(WorldBox(10 - near, 20 - near, 30 + near, 40 + near)) == (10, 960, 30, 980)
    assert view.box_to_unit(WorldBox(10 - off, 20 - off, 30 + off, 40 + off)) == (9, 959, 31, 981)


@settings(deadline=None)
@given(north_up_views(), unit_boxes(), st.integers(1, 5000))
def test_a_box_reaching_beyond_the_view_is_cut_at_its_edge(view: ViewTransform, box: UnitBox, beyond: int) -> None:
    x0, y0, _, _ = box
    inside = view.box_to_world(box)
    extent = view.extent
    far_x, far_y = beyond * extent.width / UNIT_MAX, beyond * extent.height / UNIT_MAX
    assert view.box_to_unit(WorldBox(inside.min_x, extent.min_y - far_y, extent.max_x + far_x, inside.max_y)) == (
        x0,
        y0,
        UNIT_MAX,
        UNIT_MAX,
    )
    assert view.box_to_unit(extent.grown(beyond)) == (0, 0, UNIT_MAX, UNIT_MAX)


@settings(deadline=None)
@given(north_up_views(), st.sampled_from([(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1)]), st.floats(0.0, 5.0))
def test_a_box_beside_the_view_or_only_touching_it_is_none(
    view: ViewTransform, side: tuple[int, int], away: float
) -> None:
    e = view.extent
    shift_x, shift_y = side[0] * (1 + away) * e.width, side[1] * (1 + away) * e.height
    assert (
        view.box_to_unit(WorldBox(e.min_x + shift_x, e.min_y + shift_y, e.max_x + shift_x, e.max_y + shift_y)) is None
    )


# ---- crops


@settings(deadline=None, max_examples=200)
@given(extents(10_000.0), st.lists(unit_boxes(100), min_size=1, max_size=3), unit_boxes(), pixels, pixels)
def test_a_box_in_a_crop_of_a_crop_is_where_it_is_directly(
    extent: WorldBox, crops: list[UnitBox], box: UnitBox, width: int, height: int
) -> None:
    root = view = ViewTransform.north_up(extent, width, height)
    u, v, span_u, span_v = Fraction(0), Fraction(0), Fraction(1), Fraction(1)  # the view in units of the root, exactly
    for crop in crops:
        view = ViewTransform.north_up(view.box_to_world(crop), width, height)
        u, v = u + span_u * crop[0], v + span_v * crop[1]
        span_u, span_v = span_u * (crop[2] - crop[0]) / UNIT_MAX, span_v * (crop[3] - crop[1]) / UNIT_MAX
    west, north = root.unit_to_world(float(u + span_u * box[0]), float(v + span_v * box[1]))
    east, south = root.unit_to_world(float(u + span_u * box[2]), float(v + span_v * box[3]))
    found = view.box_to_world(box)
    # a few roundings of a coordinate of 1e7 m (2e-9 m each) and of the extent
    assert (found.min_x, found.min_y, found.max_x, found.max_y) == pytest.approx(
        (west, south, east, north), rel=0, abs=2e-8
    )
    assert view.box_to_unit(found) == box


@settings(deadline=None)
@given(extents(1000.0), unit_boxes(100))
def test_a_crop_seen_from_its_parent_is_the_crop_box(extent: WorldBox, crop: UnitBox) -> None:
    parent = ViewTransform.north_up(extent, 1024, 768)
    child = ViewTransform.north_up(parent.box_to_world(crop), 640, 480)
    assert parent.box_to_unit(child.extent) == crop
    assert child.box_to_unit(parent.extent) == (0, 0, UNIT_MAX, UNIT_MAX)


# ---- tilted views


@settings(deadline=None)
@given(tilted_views(), st.floats(-100.0, 5000.0), st.floats(-100.0, 5000.0))
def test_pixel_to_world_and_back_is_the_same_pixel(view: ViewTransform, col: float, row: float) -> None:
    assert view.world_to_pixel(*view.pixel_to_world(col, row)) == pytest.approx((col, row), abs=1e-6)


@settings(deadline=None)
@given(tilted_views(), unit_boxes(5))
def test_in_a_tilted_view_world_and_unit_boxes_cover_what_they_stand_for(view: ViewTransform, box: UnitBox) -> None:
    world = view.box_to_world(box)
    for u in (box[0], box[2]):
        for v in (box[1], box[3]):
            assert world.contains(*view.unit_to_world(u, v))
    back = view.box_to_unit(world)
    assert back is not None
    assert back[0] <= box[0] and back[1] <= box[1] and back[2] >= box[2] and back[3] >= box[3]
