"""Ranks and overlaps equal values worked out by hand, and Hit@k equals one computed with shapely."""

from __future__ import annotations

import math

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from wayfix.evaluation.matching import ciou_with, flat, iou_with, point_f1, rank_of, rank_where_positive
from wayfix.geo.boxes import WorldBox, iou_bev
from wayfix.scene.scene import Scene

metres = st.floats(-50, 50, allow_nan=False).map(lambda v: round(v, 1))
sides = st.floats(0.5, 30).map(lambda v: round(v, 1))
boxes = st.tuples(metres, metres, sides, sides).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))


def rows(*values: tuple[float, float, float, float]) -> np.ndarray:
    return np.array(values, float)


def test_iou_by_hand() -> None:
    # 4 x 4 against: itself; its right half and as much beyond; a corner of 2 x 2; a touching box; one far away.
    others = rows((0, 0, 4, 4), (2, 0, 6, 4), (2, 2, 6, 6), (4, 0, 8, 4), (20, 20, 24, 24))
    assert iou_with(rows((0, 0, 4, 4))[0], others).tolist() == pytest.approx([1, 8 / 24, 4 / 28, 0, 0])


def test_ciou_by_hand() -> None:
    box = rows((0, 0, 4, 4))[0]
    same, moved, wide = ciou_with(box, rows((0, 0, 4, 4), (2, 0, 6, 4), (0, 1, 4, 3)))
    assert same == pytest.approx(1)
    # Same shape: IoU 1/3; centres 2 apart, common hull 6 x 4.
    assert moved == pytest.approx(1 / 3 - 4 / (36 + 16))
    # Same centre: IoU 1/2; v = 4/pi^2 (atan 2 - atan 1)^2, alpha = v / (1 - IoU + v).
    v = 4 / math.pi**2 * (math.atan(2) - math.atan(1)) ** 2
    assert wide == pytest.approx(0.5 - v * v / (0.5 + v))


def test_candidates_that_tie_stand_before_the_target() -> None:
    assert rank_of(0, np.array([0.5, 0.5, 0.2])) == 2
    assert rank_of(2, np.array([0.5, 0.5, 0.6])) == 1
    # Zeros are ties too: a box that hits nothing ranks the target last.
    assert rank_of(1, np.zeros(7)) == 7
    assert rank_where_positive(1, np.zeros(7)) is None
    assert rank_where_positive(1, np.array([0.3, 0.1, 0.0])) == 2


@given(boxes, st.lists(boxes, min_size=1, max_size=12), st.data())
def test_hit_at_k_equals_shapely(answer: tuple, listed: list[tuple], data: st.DataObject) -> None:
    target = data.draw(st.integers(0, len(listed) - 1))
    shape = shapely.box(*answer)
    overlaps = []
    for other in listed:
        inter = shapely.intersection(shape, shapely.box(*other)).area
        overlaps.append(round(inter / (shape.area + shapely.box(*other).area - inter), 9))
    better = [o for i, o in enumerate(overlaps) if i != target and o >= overlaps[target]]
    scores = np.round(iou_with(np.array(answer), rows(*listed)), 9)
    for k in (1, 3, 5):
        assert (rank_of(target, scores) <= k) == (len(better) < k)


@given(boxes, boxes)
def test_iou_is_that_of_world_boxes(a: tuple, b: tuple) -> None:
    assert iou_with(flat(WorldBox(*a)), rows(b))[0] == pytest.approx(iou_bev(WorldBox(*a), WorldBox(*b)))


@given(boxes, boxes)
def test_ciou_is_never_above_iou(a: tuple, b: tuple) -> None:
    assert ciou_with(np.array(a), rows(b))[0] <= iou_with(np.array(a), rows(b))[0] + 1e-12


def test_point_f1_counts_the_towns_points(town: Scene, at) -> None:
    assert town.points is not None
    # The town has one point in the middle of every cell of 0.5 m: 8 x 8 in 4 m x 4 m.
    target, answer = at(2, 2, 6, 6), at(4, 2, 8, 6)
    assert point_f1(town.points, target, target) == 1.0
    assert point_f1(town.points, answer, target) == pytest.approx(2 * 32 / (64 + 64))
    assert point_f1(town.points, at(30, 20, 34, 24), target) == 0.0
    assert point_f1(town.points, target, at(110, 0, 119, 9)) is None  # no points there


def test_point_f1_is_bound_by_heights_where_both_boxes_have_them(town: Scene, at) -> None:
    assert town.points is not None
    # The red hall: roof at 59 m (east, half in the low ground), its box without the grass below.
    flat_box = at(18, 53, 42, 72)
    roof = WorldBox(flat_box.min_x, flat_box.min_y, flat_box.max_x, flat_box.max_y, 55.0, 60.0)
    assert point_f1(town.points, roof, roof) == 1.0
    ground = WorldBox(flat_box.min_x, flat_box.min_y, flat_box.max_x, flat_box.max_y, 49.0, 51.0)
    assert point_f1(town.points, ground, roof) == 0.0
