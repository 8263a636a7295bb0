"""Candidates in drawn images: their boxes, and what is taken for what."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from wayfix.geo.boxes import WorldBox, iou_bev
from wayfix.geo.transforms import ViewTransform
from wayfix.policy.detection import Candidate, color_mask, find_candidates
from wayfix.policy.query import COLORS, Description
from wayfix.views.view import View

X, Y = 512_000.0, 5_700_000.0
WIDTH, HEIGHT = 40.0, 30.0
ROAD = (110, 110, 112)
PAINT = {
    "white": (238, 238, 236), "black": (25, 25, 28), "silver": (178, 180, 184), "grey": (115, 117, 120),
    "red": (190, 30, 35), "blue": (35, 70, 185), "green": (30, 130, 80), "yellow": (235, 200, 30),
    "orange": (235, 120, 25), "brown": (105, 65, 45),
}  # fmt: skip
Rect = tuple[float, float, float, float]
CAR: Rect = (10.0, 12.0, 14.5, 13.9)


class Drawing:
    """A north-up image of 40 m x 30 m and its heights, drawn in metres from the south-west corner."""

    def __init__(self, m_per_px: float = 0.1, ground: tuple[int, int, int] = ROAD, with_heights: bool = True) -> None:
        self.m_per_px = m_per_px
        shape = (round(HEIGHT / m_per_px), round(WIDTH / m_per_px))
        self.image = np.full((*shape, 3), ground, np.uint8)
        self.heights: NDArray[np.float32] | None = np.zeros(shape, np.float32) if with_heights else None

    def box(self, rect: Rect, color: tuple[int, int, int] | None, height: float | None) -> Drawing:
        x0, y0, x1, y1 = (v / self.m_per_px for v in rect)
        rows = slice(round(self.image.shape[0] - y1), round(self.image.shape[0] - y0))
        columns = slice(round(x0), round(x1))
        if color is not None:
            self.image[rows, columns] = color
        if self.heights is not None and height is not None:
            self.heights[rows, columns] = height
        return self

    def disc(self, x: float, y: float, radius: float, color: tuple[int, int, int], height: float) -> Drawing:
        centre = (round(x / self.m_per_px), round(self.image.shape[0] - y / self.m_per_px))
        cv2.circle(self.image, centre, round(radius / self.m_per_px), color, -1)
        if self.heights is not None:
            cv2.circle(self.heights, centre, round(radius / self.m_per_px), height, -1)
        return self

    def find(self, kind: str, color: str = "", category: str = "") -> list[Candidate]:
        extent = WorldBox(X, Y, X + WIDTH, Y + HEIGHT)
        rows, columns = self.image.shape[:2]
        view = View(
            "v1",
            self.image,
            extent,
            ViewTransform.north_up(extent, columns, rows),
            read_heights=lambda: self.heights,
        )
        return find_candidates(view, Description("car" if kind == "car" else "building", category, color))


def world(rect: Rect) -> WorldBox:
    return WorldBox(X + rect[0], Y + rect[1], X + rect[2], Y + rect[3])


def fitting(candidates: list[Candidate]) -> list[Candidate]:
    return [c for c in candidates if c.looks >= 0.4]


def edges(box: WorldBox) -> tuple[float, float, float, float]:
    return box.min_x, box.min_y, box.max_x, box.max_y


@pytest.mark.parametrize("with_heights", [True, False])
@pytest.mark.parametrize("color", ["white", ""])
def test_a_white_car_on_a_grey_road_is_the_only_candidate(with_heights: bool, color: str) -> None:
    drawing = Drawing(with_heights=with_heights).box(CAR, PAINT["white"], 1.5)
    (found,) = drawing.find("car", color)
    assert iou_bev(found.box, world(CAR)) > 0.9
    assert found.looks > 0.9
    assert found.area_m2 == pytest.approx(4.5 * 1.9, rel=0.1)
    assert found.length_m == pytest.approx(4.5, abs=0.2)
    assert found.height_m == (pytest.approx(1.5) if with_heights else None)


@pytest.mark.parametrize("color", [c for c in PAINT if c not in ("grey", "silver")])
@pytest.mark.parametrize("with_heights", [True, False])
def test_a_car_of_any_colour_is_found_by_that_colour(color: str, with_heights: bool) -> None:
    found = fitting(Drawing(with_heights=with_heights).box(CAR, PAINT[color], 1.5).find("car", color))
    assert len(found) == 1
    assert iou_bev(found[0].box, world(CAR)) > 0.85


def test_a_grey_car_on_a_grey_road_is_found_by_its_height() -> None:
    (found,) = fitting(Drawing().box(CAR, PAINT["grey"], 1.5).find("car", "grey"))
    assert iou_bev(found.box, world(CAR)) > 0.85


@pytest.mark.parametrize(("color", "which"), [("red", 0), ("blue", 1), ("white", 2)])
def test_parked_cars_one_metre_apart_are_told_apart_by_colour_though_their_heights_merge(
    color: str, which: int
) -> None:
    rects: list[Rect] = [(10.0, 12.0, 14.5, 13.9), (10.0, 14.9, 14.5, 16.8), (10.0, 17.8, 14.5, 19.7)]
    drawing = Drawing()
    for rect, paint in zip(rects, ("red", "blue", "white"), strict=True):
        drawing.box(rect, PAINT[paint], None)
    drawing.box((10.0, 12.0, 14.5, 19.7), None, 1.4)  # a coarse survey closes the gaps
    (found,) = fitting(drawing.find("car", color))
    assert iou_bev(found.box, world(rects[which])) > 0.85


@pytest.mark.parametrize("with_heights", [True, False])
@pytest.mark.parametrize("m_per_px", [0.1, 0.2])
def test_a_red_roofs_box_is_right_to_a_pixel(with_heights: bool, m_per_px: float) -> None:
    roof: Rect = (6.0, 8.0, 22.0, 20.0)
    (found,) = Drawing(m_per_px, with_heights=with_heights).box(roof, PAINT["red"], 8.0).find("building", "red")
    assert edges(found.box) == pytest.approx(edges(world(roof)), abs=m_per_px)
    assert found.looks == pytest.approx(1.0)
    assert found.area_m2 == pytest.approx(16 * 12, rel=0.05)
    assert found.height_m == (pytest.approx(8.0) if with_heights else None)


def test_a_roof_of_another_colour_looks_less_like_it() -> None:
    drawing = Drawing().box((2, 2, 14, 12), PAINT["red"], 8.0).box((22, 2, 34, 12), PAINT["blue"], 8.0)
    by_place = {round(c.box.min_x - X): c.looks for c in drawing.find("building", "red")}
    assert by_place == {2: pytest.approx(1.0), 22: 0.0}


def test_trees_are_no_buildings() -> None:
    drawing = Drawing().disc(12, 15, 5, (60, 95, 45), 9.0).disc(28, 15, 4, (80, 105, 60), 6.0)
    assert drawing.find("building") == []
    assert drawing.find("building", "green") == []


def test_bushes_are_no_cars() -> None:
    drawing = Drawing()
    for x in (6.0, 14.0, 22.0):
        drawing.box((x, 12.0, x + 4.5, 14.0), (60, 95, 45), 1.5)
    assert drawing.find("car") == []


def test_a_building_beside_a_tree_keeps_its_box() -> None:
    house: Rect = (6.0, 8.0, 18.0, 20.0)
    (found,) = Drawing().box(house, PAINT["brown"], 8.0).disc(23, 14, 5.5, (60, 95, 45), 9.0).find("building")
    assert edges(found.box) == pytest.approx(edges(world(house)), abs=0.4)


def test_buildings_are_no_cars_and_cars_no_buildings() -> None:
    drawing = Drawing().box((4, 4, 20, 16), PAINT["white"], 8.0).box((26.0, 20.0, 30.5, 21.9), PAINT["white"], 1.5)
    (vehicle,) = drawing.find("car", "white")
    assert vehicle.box.min_x == pytest.approx(X + 26, abs=0.1)
    (house,) = drawing.find("building")
    assert house.box.min_x == pytest.approx(X + 4, abs=0.1)


def test_markings_on_the_road_are_no_cars_where_heights_are_known() -> None:
    drawing = Drawing().box((5, 5, 9.5, 7), PAINT["white"], 0.0).box(CAR, PAINT["white"], 1.5)
    (found,) = drawing.find("car", "white")
    assert found.box.min_x == pytest.approx(X + CAR[0], abs=0.1)


@pytest.mark.parametrize(("category", "length"), [("car", 4.5), ("van", 5.8), ("truck", 8.5), ("bus", 12.0)])
def test_the_length_of_a_vehicle_tells_its_kind(category: str, length: float) -> None:
    drawing = Drawing().box((10.0, 12.0, 10.0 + length, 14.5 if length > 5 else 13.9), PAINT["white"], 2.0)
    looks = {kind: c.looks for kind in ("car", "van", "truck", "bus") for c in drawing.find("car", "white", kind)}
    assert max(looks, key=lambda kind: looks[kind]) == category
    assert looks[category] > 0.9


def test_a_turned_car_has_its_own_length_and_the_box_around_it() -> None:
    drawing = Drawing()
    corners = cv2.boxPoints(((200.0, 150.0), (46.0, 19.0), 45.0))
    cv2.fillPoly(drawing.image, [corners.astype(np.int32)], PAINT["white"])
    assert drawing.heights is not None
    cv2.fillPoly(drawing.heights, [corners.astype(np.int32)], 1.5)
    (found,) = drawing.find("car", "white")
    assert found.length_m == pytest.approx(4.6, abs=0.4)
    assert found.box.width == pytest.approx(6.5 / 2**0.5, abs=0.4)
    assert found.looks > 0.8


def test_a_view_finer_than_needed_gives_the_same_box() -> None:
    coarse = Drawing(0.1).box(CAR, PAINT["white"], 1.5).find("car", "white")
    fine = Drawing(0.025).box(CAR, PAINT["white"], 1.5).find("car", "white")
    assert edges(fine[0].box) == pytest.approx(edges(coarse[0].box), abs=0.11)


@pytest.mark.parametrize("kind", ["car", "building"])
def test_unknown_heights_are_no_error_and_nothing_is_seen_there(kind: str) -> None:
    drawing = Drawing().box(CAR, PAINT["white"], 1.5).box((20, 5, 35, 20), PAINT["white"], 8.0)
    assert drawing.heights is not None
    drawing.heights[:] = np.nan
    assert drawing.find(kind, "white") == []


@pytest.mark.parametrize("kind", ["car", "building"])
def test_an_empty_road_with_heights_holds_nothing(kind: str) -> None:
    assert Drawing().find(kind) == []
    assert Drawing().find(kind, "red") == []


@pytest.mark.parametrize("color", sorted(set(COLORS.values())))
def test_every_paint_is_called_by_its_own_colour_word(color: str) -> None:
    hsv = cv2.cvtColor(np.full((2, 3, 3), PAINT[color], np.uint8), cv2.COLOR_RGB2HSV)
    mask = color_mask(hsv, color)
    assert mask.shape == (2, 3)
    assert mask.all()


@pytest.mark.parametrize(
    ("paint", "word"), [("red", "orange"), ("orange", "red"), ("white", "grey"), ("blue", "green")]
)
def test_a_paint_is_not_called_by_a_neighbouring_colour_word(paint: str, word: str) -> None:
    hsv = cv2.cvtColor(np.full((2, 2, 3), PAINT[paint], np.uint8), cv2.COLOR_RGB2HSV)
    assert not color_mask(hsv, word).any()
