"""Unit boxes are checked by named rules; world boxes measure as shapely measures them."""

from __future__ import annotations

import json
import math
from decimal import Decimal

import numpy as np
import pytest
import shapely
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wayfix.errors import InvalidBox
from wayfix.geo.boxes import UNIT_MAX, WorldBox, center_distance, gap, iou_3d, iou_bev, parse_unit_box

SHAPE_RULE = "four integers 0 to 1000"
INTEGER_RULE = "coordinates are integers 0 to 1000"
RANGE_RULE = "within 0 to 1000"
ORDER_RULE = "x_min < x_max and y_min < y_max"

units = st.integers(0, UNIT_MAX)


@st.composite
def unit_boxes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    x0, y0 = draw(st.integers(0, UNIT_MAX - 1)), draw(st.integers(0, UNIT_MAX - 1))
    return x0, y0, draw(st.integers(x0 + 1, UNIT_MAX)), draw(st.integers(y0 + 1, UNIT_MAX))


@st.composite
def world_boxes(draw: st.DrawFn, reach: int = 400) -> WorldBox:
    """Boxes on a quarter-metre grid around a far origin, near enough to one another to overlap often."""
    x, y = (draw(st.integers(-reach, reach)) / 4 for _ in range(2))
    width, height = (draw(st.integers(1, reach)) / 4 for _ in range(2))
    east, north = 628_000.0, 5_803_000.0
    return WorldBox(east + x, north + y, east + x + width, north + y + height)


def shape(box: WorldBox) -> shapely.Polygon:
    return shapely.box(box.min_x, box.min_y, box.max_x, box.max_y)


def refusal(value: object) -> str:
    with pytest.raises(InvalidBox) as caught:
        parse_unit_box(value)
    assert caught.value.code == "invalid_box"
    return str(caught.value)


# ---- parse_unit_box


@settings(deadline=None)
@given(unit_boxes())
def test_every_ordered_box_in_range_is_accepted_unchanged(box: tuple[int, int, int, int]) -> None:
    assert parse_unit_box(box) == box
    assert parse_unit_box(list(box)) == box


@settings(deadline=None)
@given(unit_boxes())
def test_integral_floats_are_accepted_and_become_ints(box: tuple[int, int, int, int]) -> None:
    parsed = parse_unit_box([float(v) for v in box])
    assert parsed == box
    assert [type(v) for v in parsed] == [int] * 4


def test_the_whole_view_is_a_box_with_both_ends_included() -> None:
    assert parse_unit_box([0, 0, 1000, 1000]) == (0, 0, 1000, 1000)


@settings(deadline=None)
@given(st.lists(units, max_size=12).filter(lambda v: len(v) != 4))
def test_a_wrong_number_of_coordinates_is_refused(value: list[int]) -> None:
    assert SHAPE_RULE in refusal(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        1.0,
        True,
        "0,0,1,1",
        "0011",
        b"\x00\x00\x01\x01",
        {"x_min": 0},
        {0, 1, 2, 3},
        np.zeros(4),
        iter([0] * 4),
    ],
    ids=lambda v: type(v).__name__,
)
def test_what_is_no_sequence_of_coordinates_is_refused(value: object) -> None:
    assert SHAPE_RULE in refusal(value)


@pytest.mark.parametrize(
    "bad",
    [True, False, math.nan, math.inf, -math.inf, 0.5, 999.999, "5", "", None, [1], (1, 2), {}, 1j, Decimal(5), b"5"],
    ids=repr,
)
@pytest.mark.parametrize("place", range(4))
def test_a_coordinate_that_is_no_integer_is_refused_wherever_it_stands(bad: object, place: int) -> None:
    value: list[object] = [0, 0, 1000, 1000]
    value[place] = bad
    message = refusal(value)
    assert INTEGER_RULE in message
    assert repr(bad) in message


def test_nested_boxes_are_refused() -> None:
    assert SHAPE_RULE in refusal([[0, 0, 10, 10]])
    assert INTEGER_RULE in refusal([[0, 0, 10, 10]] * 4)


@settings(deadline=None)
@given(unit_boxes(), st.integers(0, 3), st.integers(1, 10**9), st.booleans())
def test_a_coordinate_outside_the_view_is_refused(
    box: tuple[int, int, int, int], place: int, beyond: int, below: bool
) -> None:
    value = list(box)
    value[place] = -beyond if below else UNIT_MAX + beyond
    message = refusal(value)
    assert RANGE_RULE in message
    assert str(value[place]) in message


@settings(deadline=None)
@given(units, units, units, units)
def test_crossed_or_empty_boxes_are_refused(x0: int, y0: int, x1: int, y1: int) -> None:
    assume(x0 >= x1 or y0 >= y1)
    assert ORDER_RULE in refusal((x0, y0, x1, y1))


@pytest.mark.parametrize(
    "huge",
    [
        pytest.param(10**18, id="1e18"),
        pytest.param(10**308, id="1e308 as int"),
        pytest.param(1e300, id="1e300 as float"),
        pytest.param(json.loads("1" + "0" * 400), id="401 digits, as JSON gives them"),
        pytest.param(-(10**400), id="minus 401 digits"),
        pytest.param(10**5000, id="5001 digits"),
    ],
)
def test_huge_numbers_are_refused_with_a_message_a_policy_can_read(huge: float) -> None:
    message = refusal([0, 0, huge, 1000])
    assert RANGE_RULE in message or INTEGER_RULE in message
    assert len(message) < 300


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, min_size=3, max_size=5),
        max_leaves=8,
    )
)
def test_any_json_like_value_gives_a_valid_box_or_invalid_box(value: object) -> None:
    try:
        x0, y0, x1, y1 = parse_unit_box(value)
    except InvalidBox:
        return
    assert 0 <= x0 < x1 <= UNIT_MAX
    assert 0 <= y0 < y1 <= UNIT_MAX


# ---- world boxes


def test_a_world_box_knows_its_centre_size_and_area() -> None:
    box = WorldBox(100.0, 200.0, 104.0, 210.0)
    assert box.center == (102.0, 205.0)
    assert (box.width, box.height, box.area) == (4.0, 10.0, 40.0)


def test_a_grown_box_gains_the_margin_on_each_side_and_keeps_its_heights() -> None:
    assert WorldBox(0.0, 0.0, 2.0, 4.0, 1.0, 9.0).grown(3.0) == WorldBox(-3.0, -3.0, 5.0, 7.0, 1.0, 9.0)


@settings(deadline=None)
@given(world_boxes(), world_boxes())
def test_clipping_is_the_intersection_and_none_without_shared_area(a: WorldBox, b: WorldBox) -> None:
    expected = shapely.intersection(shape(a), shape(b))
    clipped = a.clipped(b)
    if expected.area == 0:
        assert clipped is None
    else:
        assert clipped is not None
        assert (clipped.min_x, clipped.min_y, clipped.max_x, clipped.max_y) == expected.bounds


def test_clipping_keeps_heights() -> None:
    assert WorldBox(0, 0, 4, 4, 2.0, 7.0).clipped(WorldBox(1, 1, 9, 9)) == WorldBox(1, 1, 4, 4, 2.0, 7.0)


@settings(deadline=None)
@given(world_boxes(), st.integers(-400, 800), st.integers(-400, 800))
def test_a_box_contains_its_inside_and_its_edge(box: WorldBox, x: int, y: int) -> None:
    point = (628_000.0 + x / 4, 5_803_000.0 + y / 4)
    assert box.contains(*point) == shapely.covers(shape(box), shapely.Point(point))
    assert box.contains(box.min_x, box.min_y)
    assert box.contains(box.max_x, box.max_y)


@settings(deadline=None)
@given(world_boxes(), world_boxes())
def test_iou_is_symmetric_within_0_and_1_and_equal_to_shapelys(a: WorldBox, b: WorldBox) -> None:
    value = iou_bev(a, b)
    sa, sb = shape(a), shape(b)
    assert value == iou_bev(b, a)
    assert 0.0 <= value <= 1.0
    assert value == pytest.approx(shapely.intersection(sa, sb).area / shapely.union(sa, sb).area, rel=1e-6, abs=1e-12)


@settings(deadline=None)
@given(world_boxes(), st.lists(st.integers(-2, 2), min_size=4, max_size=4))
def test_iou_is_1_exactly_when_the_boxes_are_equal(a: WorldBox, moved: list[int]) -> None:
    corners = (a.min_x, a.min_y, a.max_x, a.max_y)
    b = WorldBox(*(corner + step / 16 for corner, step in zip(corners, moved, strict=True)))
    assume(b.width > 0 and b.height > 0)
    assert (iou_bev(a, b) == 1.0) == (a == b)
    assert iou_bev(a, a) == 1.0


@settings(deadline=None)
@given(st.lists(st.floats(-1e7, 1e7), min_size=8, max_size=8))
def test_iou_stays_within_0_and_1_for_any_floats(v: list[float]) -> None:
    boxes = [
        WorldBox(min(q[0], q[2]), min(q[1], q[3]), max(q[0], q[2]), max(q[1], q[3]), min(q[:2]), max(q[:2]))
        for q in (v[:4], v[4:])
    ]
    volume_iou = iou_3d(*boxes)
    assert volume_iou is not None
    assert 0.0 <= iou_bev(*boxes) <= 1.0
    assert 0.0 <= volume_iou <= 1.0


def test_iou_of_boxes_without_area_is_0_and_no_division_by_zero() -> None:
    point = WorldBox(1.0, 1.0, 1.0, 1.0, 2.0, 2.0)
    assert iou_bev(point, point) == 0.0
    assert iou_3d(point, point) == 0.0


def test_iou_of_touching_boxes_is_0() -> None:
    assert iou_bev(WorldBox(0, 0, 1, 1), WorldBox(1, 0, 2, 1)) == 0.0
    assert iou_bev(WorldBox(0, 0, 1, 1), WorldBox(1, 1, 2, 2)) == 0.0


CUBE = WorldBox(0.0, 0.0, 2.0, 2.0, 0.0, 2.0)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (CUBE, 1.0),
        (WorldBox(1.0, 1.0, 3.0, 3.0, 1.0, 3.0), 1 / 15),  # 1 of 8 + 8 - 1
        (WorldBox(0.0, 0.0, 2.0, 2.0, 1.0, 3.0), 1 / 3),  # 4 of 8 + 8 - 4
        (WorldBox(0.0, 0.0, 2.0, 2.0, 0.0, 1.0), 1 / 2),  # half its height
        (WorldBox(0.5, 0.5, 1.5, 1.5, 0.5, 1.5), 1 / 8),  # inside
        (WorldBox(0.0, 0.0, 2.0, 2.0, 2.0, 4.0), 0.0),  # stacked
        (WorldBox(5.0, 0.0, 7.0, 2.0, 0.0, 2.0), 0.0),  # beside
    ],
)
def test_3d_iou_hand_values(other: WorldBox, expected: float) -> None:
    assert iou_3d(CUBE, other) == pytest.approx(expected, abs=1e-15)
    assert iou_3d(other, CUBE) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("heights", [(None, None), (0.0, None), (None, 2.0)])
def test_3d_iou_is_none_where_either_box_lacks_a_height(heights: tuple[float | None, float | None]) -> None:
    flat = WorldBox(0.0, 0.0, 2.0, 2.0, *heights)
    assert iou_3d(CUBE, flat) is None
    assert iou_3d(flat, CUBE) is None


@settings(deadline=None)
@given(world_boxes(), world_boxes())
def test_gap_is_the_shortest_distance_between_the_footprints(a: WorldBox, b: WorldBox) -> None:
    assert gap(a, b) == gap(b, a)
    assert gap(a, b) == pytest.approx(shapely.distance(shape(a), shape(b)), abs=1e-9)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (WorldBox(5.0, 0.0, 6.0, 2.0), 3.0),
        (WorldBox(0.0, -6.0, 2.0, -4.0), 4.0),
        (WorldBox(5.0, 6.0, 7.0, 8.0), 5.0),  # corner to corner, 3-4-5
        (WorldBox(2.0, 2.0, 3.0, 3.0), 0.0),  # touching corners
        (WorldBox(1.0, 1.0, 9.0, 9.0), 0.0),  # overlapping
        (WorldBox(0.5, 0.5, 1.0, 1.0), 0.0),  # inside
    ],
)
def test_gap_hand_values(other: WorldBox, expected: float) -> None:
    assert gap(WorldBox(0.0, 0.0, 2.0, 2.0), other) == expected


@settings(deadline=None)
@given(world_boxes(), world_boxes())
def test_center_distance_is_that_of_the_centroids(a: WorldBox, b: WorldBox) -> None:
    expected = shapely.distance(shapely.Point(a.center), shapely.Point(b.center))
    assert center_distance(a, b) == pytest.approx(expected, abs=1e-9)
    assert center_distance(a, b) == center_distance(b, a)
