"""Directions, sides of a road and distances to it, on a north-up map."""

from __future__ import annotations

import math

import pytest
import shapely
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wayfix.geo.boxes import WorldBox
from wayfix.geo.relations import DIRECTIONS, SAME_DIRECTION, direction_angle, point_to_line, road_side

EAST, NORTH = 628_000.0, 5_803_000.0
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
COMPASS = {"north": 0.0, "east": 90.0, "south": 180.0, "west": 270.0}

metres = st.integers(-4000, 4000).map(lambda v: v / 8)
points = st.tuples(metres, metres).map(lambda p: (EAST + p[0], NORTH + p[1]))
lines = st.lists(points, min_size=2, max_size=8).filter(lambda line: len(set(line)) > 1)


def box_at(x: float, y: float, size: float = 4.0) -> WorldBox:
    return WorldBox(x - size / 2, y - size / 2, x + size / 2, y + size / 2)


# ---- direction_angle


@pytest.mark.parametrize(
    ("offset", "north", "east", "south", "west"),
    [
        ((0, 10), 0, 90, 180, 90),
        ((10, 0), 90, 0, 90, 180),
        ((0, -10), 180, 90, 0, 90),
        ((-10, 0), 90, 180, 90, 0),
        ((10, 10), 45, 45, 135, 135),
        ((-10, 10), 45, 135, 135, 45),
    ],
)
def test_direction_angle_hand_values(
    offset: tuple[float, float], north: float, east: float, south: float, west: float
) -> None:
    anchor, target = box_at(EAST, NORTH), box_at(EAST + offset[0], NORTH + offset[1])
    found = [direction_angle(target, anchor, name) for name in ("north", "east", "south", "west")]
    assert found == pytest.approx([north, east, south, west], abs=1e-6)


@settings(deadline=None)
@given(points, points, st.sampled_from(sorted(DIRECTIONS)), st.floats(1.0, 300.0))
def test_direction_angle_is_the_angle_between_the_bearing_and_the_compass_direction(
    a: tuple[float, float], b: tuple[float, float], direction: str, size: float
) -> None:
    assume(a != b)
    bearing = math.degrees(math.atan2(b[0] - a[0], b[1] - a[1]))
    turn = abs((bearing - COMPASS[direction] + 180.0) % 360.0 - 180.0)
    assert direction_angle(box_at(*b), box_at(*a, size), direction) == pytest.approx(turn, abs=1e-4)


@settings(deadline=None)
@given(points, points, st.sampled_from(sorted(DIRECTIONS)))
def test_opposite_directions_and_swapped_boxes_give_supplementary_angles(
    a: tuple[float, float], b: tuple[float, float], direction: str
) -> None:
    assume(a != b)
    one, two = box_at(*a), box_at(*b)
    angle = direction_angle(one, two, direction)
    assert 0.0 <= angle <= 180.0
    assert angle + direction_angle(one, two, OPPOSITE[direction]) == pytest.approx(180.0, abs=1e-4)
    assert angle == pytest.approx(direction_angle(two, one, OPPOSITE[direction]), abs=1e-4)


@pytest.mark.parametrize("direction", sorted(DIRECTIONS))
def test_a_box_is_in_no_direction_of_one_with_the_same_centre(direction: str) -> None:
    assert direction_angle(box_at(EAST, NORTH), box_at(EAST, NORTH, 50.0), direction) == 180.0


def test_map_words_stand_for_grid_directions() -> None:
    anchor = box_at(EAST, NORTH)
    for word, (dx, dy) in {"left": (-1, 0), "right": (1, 0), "above": (0, 1), "below": (0, -1)}.items():
        target = box_at(EAST + 20 * dx, NORTH + 20 * dy)
        assert direction_angle(target, anchor, SAME_DIRECTION[word]) == pytest.approx(0.0, abs=1e-6)


# ---- point_to_line


@settings(deadline=None, max_examples=200)
@given(points, lines)
def test_point_to_line_is_the_distance_shapely_gives_and_names_a_point_on_the_line(
    point: tuple[float, float], line: list[tuple[float, float]]
) -> None:
    distance, px, py = point_to_line(*point, line)
    road = shapely.LineString(line)
    assert distance == pytest.approx(shapely.distance(road, shapely.Point(point)), abs=1e-6)
    assert shapely.distance(road, shapely.Point(px, py)) < 1e-6
    assert math.hypot(point[0] - px, point[1] - py) == pytest.approx(distance, abs=1e-9)


def test_point_to_line_hand_values() -> None:
    bend = [(0.0, 0.0), (10.0, 0.0), (10.0, 10.0)]
    assert point_to_line(5.0, 3.0, bend) == (3.0, 5.0, 0.0)  # beside the first leg
    assert point_to_line(14.0, 7.0, bend) == (4.0, 10.0, 7.0)  # beside the second
    assert point_to_line(13.0, -4.0, bend) == (5.0, 10.0, 0.0)  # off the corner
    assert point_to_line(-3.0, 4.0, bend) == (5.0, 0.0, 0.0)  # before the start
    assert point_to_line(10.0, 12.0, bend) == (2.0, 10.0, 10.0)  # past the end


def test_repeated_vertices_do_no_harm() -> None:
    assert point_to_line(3.0, 4.0, [(0.0, 0.0), (0.0, 0.0)]) == (5.0, 0.0, 0.0)
    assert point_to_line(5.0, 3.0, [(0.0, 0.0), (0.0, 0.0), (10.0, 0.0), (10.0, 0.0)]) == (3.0, 5.0, 0.0)


# ---- road_side


@settings(deadline=None)
@given(metres, st.floats(0.5, 200.0), st.sampled_from(["north", "south"]), st.booleans())
def test_beside_an_east_west_road_lies_north_or_south(x: float, away: float, side: str, reverse: bool) -> None:
    road = [(EAST - 600.0, NORTH), (EAST + 600.0, NORTH)]
    target = box_at(EAST + x, NORTH + (away if side == "north" else -away))
    found, distance = road_side(target, road[::-1] if reverse else road)
    assert found == side
    assert distance == pytest.approx(away, abs=1e-6)


@settings(deadline=None)
@given(metres, st.floats(0.5, 200.0), st.sampled_from(["east", "west"]), st.booleans())
def test_beside_a_north_south_road_lies_east_or_west(y: float, away: float, side: str, reverse: bool) -> None:
    road = [(EAST, NORTH - 600.0), (EAST, NORTH + 600.0)]
    target = box_at(EAST + (away if side == "east" else -away), NORTH + y)
    found, distance = road_side(target, road[::-1] if reverse else road)
    assert found == side
    assert distance == pytest.approx(away, abs=1e-6)


@pytest.mark.parametrize(
    ("bearing", "expected"),
    [
        (0.0, "north"),
        (24.5, "north"),
        (-24.5, "north"),
        (25.5, None),
        (45.0, None),
        (64.5, None),
        (65.5, "east"),
        (90.0, "east"),
        (114.5, "east"),
        (115.5, None),
        (155.5, "south"),
        (180.0, "south"),
        (204.5, "south"),
        (225.0, None),
        (245.5, "west"),
        (270.0, "west"),
        (294.5, "west"),
        (315.0, None),
    ],
)
def test_a_side_has_a_name_unless_the_offset_leans_more_than_25_degrees_from_it(
    bearing: float, expected: str | None
) -> None:
    along = math.radians(bearing + 90.0)  # a straight road whose offset to the target has this bearing
    dx, dy = 500.0 * math.sin(along), 500.0 * math.cos(along)
    out = math.radians(bearing)
    target = box_at(EAST + 10.0 * math.sin(out), NORTH + 10.0 * math.cos(out))
    side, distance = road_side(target, [(EAST - dx, NORTH - dy), (EAST + dx, NORTH + dy)])
    assert side == expected
    assert distance == pytest.approx(10.0, abs=1e-6)


def test_on_a_bent_road_the_nearest_leg_tells_the_side() -> None:
    road = [(0.0, 0.0), (100.0, 0.0), (100.0, 100.0)]
    assert road_side(box_at(50.0, 8.0), road) == ("north", 8.0)
    assert road_side(box_at(92.0, 50.0), road) == ("west", 8.0)
    assert road_side(box_at(108.0, 50.0), road) == ("east", 8.0)


def test_a_target_on_the_centre_line_lies_on_no_side() -> None:
    road = [(0.0, 0.0), (100.0, 0.0)]
    assert road_side(box_at(50.0, 0.0), road) == (None, 0.0)
