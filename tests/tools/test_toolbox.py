"""The three tools on a town in which everything is known: what they give, and what they refuse."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wayfix.errors import ToolError, UnknownTool, UnknownView
from wayfix.geo.boxes import UNIT_MAX, UnitBox, WorldBox
from wayfix.geo.transforms import ViewTransform
from wayfix.scene.scene import Scene
from wayfix.tools.arguments import LandmarkQuery, ObliqueRender, ToolCall, ZoomIn
from wayfix.tools.toolbox import MAX_LINE_POINTS, Toolbox, ToolResult
from wayfix.views.scene_views import MAX_ASPECT, MIN_CROP_M, SceneViews
from wayfix.views.view import ImageSizes, View

At = Callable[[float, float, float, float], WorldBox]


class Session:
    """An episode's views and the tools, without an episode."""

    def __init__(self, scene: Scene, cache_folder: Path, sizes: ImageSizes | None = None) -> None:
        self.toolbox = Toolbox(SceneViews(scene, cache_folder=cache_folder), sizes or ImageSizes())
        overview = self.toolbox.overview()
        self.views: dict[str, View] = {overview.id: overview}

    def run(self, call: ToolCall) -> ToolResult:
        result = self.toolbox.run(call, self.views)
        json.dumps(result.content, allow_nan=False)
        if result.view is not None:
            assert result.view.id not in self.views
            self.views[result.view.id] = result.view
        return result

    def zoom(self, source: str, box: UnitBox, scale: float | None = None) -> View:
        view = self.run(ZoomIn(source_view_id=source, crop_box=list(box), scale=scale)).view
        assert view is not None
        return view

    def zoom_to(self, source: str, world: WorldBox, scale: float | None = None) -> View:
        return self.zoom(source, unit_box(self.views[source], world), scale)

    def look(self, world: WorldBox, direction: Any = "south", margin: float | None = None) -> ToolResult:
        box = unit_box(self.views["v0"], world)
        return self.run(ObliqueRender(source_view_id="v0", candidate_box=list(box), direction=direction, margin=margin))

    def landmark(self, name: str, kind: str | None = None, source: str = "v0") -> dict[str, Any]:
        return self.run(LandmarkQuery(landmark_name=name, source_view_id=source, landmark_type=kind)).content


@pytest.fixture
def session(town: Scene, tmp_path: Path) -> Session:
    return Session(town, tmp_path)


def transform_of(view: View) -> ViewTransform:
    assert view.transform is not None
    return view.transform


def unit_box(view: View, world: WorldBox) -> UnitBox:
    box = transform_of(view).box_to_unit(world)
    assert box is not None
    return box


def pixel_at(view: View, x: float, y: float) -> np.ndarray:
    """The colour where a view shows a world point."""
    column, row = transform_of(view).world_to_pixel(x, y)
    return view.image[int(row), int(column)].astype(int)


def is_color(pixel: np.ndarray, color: tuple[int, int, int]) -> bool:
    """Equal up to what JPEG does to flat areas."""
    return bool(np.abs(pixel - np.array(color)).max() <= 12)


# ---- which tools there are


def test_all_tools_are_offered_where_the_scene_has_landmarks_and_points(town: Scene, tmp_path: Path) -> None:
    toolbox = Session(town, tmp_path).toolbox
    assert toolbox.offered == ("landmark_query", "zoom_in", "oblique_render")
    assert [schema["function"]["name"] for schema in toolbox.schemas()] == list(toolbox.offered)


def test_oblique_views_are_not_offered_without_points(town_without_points: Scene, tmp_path: Path) -> None:
    session = Session(town_without_points, tmp_path)
    assert session.toolbox.offered == ("landmark_query", "zoom_in")
    with pytest.raises(UnknownTool, match="does not offer oblique_render; it offers landmark_query, zoom_in") as caught:
        session.look(town_without_points.extent)
    assert caught.value.code == "unknown_tool"


def test_neither_landmarks_nor_oblique_views_are_offered_by_a_photo_alone(bare_town: Scene, tmp_path: Path) -> None:
    session = Session(bare_town, tmp_path)
    assert session.toolbox.offered == ("zoom_in",)
    with pytest.raises(UnknownTool, match="does not offer landmark_query; it offers zoom_in"):
        session.landmark("Red Hall")


def test_a_caller_can_offer_fewer_tools_but_not_more(town: Scene, bare_town: Scene) -> None:
    assert Toolbox(SceneViews(town), ImageSizes(), ("oblique_render", "fly")).offered == ("oblique_render",)
    assert Toolbox(SceneViews(bare_town), ImageSizes(), ("landmark_query",)).offered == ()


# ---- landmark_query


def test_a_landmark_is_found_with_its_place_in_the_view_and_in_the_world(session: Session, at: At, town: Scene) -> None:
    hall = at(20, 55, 40, 70)
    assert session.landmark("Red Hall") == {
        "status": "found",
        "view_id": "v0",
        "name": "Red Hall",
        "type": "hall",
        # 120 m x 80 m: 20 m is 166.67 units of x, and 70 m from the south is 10 m from the north, 125 units of y.
        "box": [166, 125, 334, 313],
        "center": [250, 219],
        "world": {"center": list(hall.center), "size_m": [20.0, 15.0]},
    }


@pytest.mark.parametrize("name", ["Town House", "red hall", "the Red Hall", "Red Hal", "Rde Hall", "RED  HALL!"])
def test_an_alias_another_spelling_or_a_typo_finds_the_landmark_under_its_own_name(session: Session, name: str) -> None:
    found = session.landmark(name)
    assert (found["status"], found["name"], found["box"]) == ("found", "Red Hall", [166, 125, 334, 313])


def test_equal_names_are_ambiguous_and_all_their_places_are_told(session: Session) -> None:
    found = session.landmark("Mercury")
    assert found["status"] == "ambiguous"
    assert {(c["name"], c["type"], tuple(c["box"])) for c in found["candidates"]} == {
        ("Mercury", "school", (666, 725, 817, 900)),
        ("Mercury", "cafe", (833, 150, 900, 250)),
    }
    assert "landmark_type" in found["hint"]
    assert "box" not in found


@pytest.mark.parametrize(("kind", "box"), [("school", [666, 725, 817, 900]), ("Cafe", [833, 150, 900, 250])])
def test_the_type_tells_equal_names_apart(session: Session, kind: str, box: list[int]) -> None:
    found = session.landmark("Mercury", kind)
    assert (found["status"], found["type"], found["box"]) == ("found", kind.lower(), box)


@pytest.mark.parametrize(("name", "kind"), [("Nowhere Castle", None), ("Mercury", "river"), ("!!!", None)])
def test_an_unknown_name_is_not_found_and_the_policy_is_told_what_to_try(
    session: Session, name: str, kind: str | None
) -> None:
    found = session.landmark(name, kind)
    assert set(found) == {"status", "view_id", "hint"}
    assert found["status"] == "not_found"
    assert "spelling" in found["hint"]


def test_a_landmark_is_projected_into_the_view_that_was_named(session: Session, at: At) -> None:
    zoom = session.zoom_to("v0", at(0, 50, 60, 80))
    found = session.landmark("Red Hall", source=zoom.id)
    assert found["view_id"] == zoom.id
    assert found["box"] == [333, 333, 667, 834]


@pytest.mark.parametrize(
    ("seen", "where"),
    [
        ((60, 55, 100, 75), "to the west"),
        ((0, 55, 18, 73), "to the east"),
        ((20, 0, 40, 20), "to the north"),
        ((20, 72, 40, 80), "to the south"),
        ((60, 0, 100, 30), "to the north-west"),
        ((0, 0, 15, 30), "to the north-east"),
    ],
)
def test_a_landmark_outside_the_view_is_told_with_its_direction(
    session: Session, at: At, seen: tuple[float, float, float, float], where: str
) -> None:
    view = session.zoom_to("v0", at(*seen))
    found = session.landmark("Red Hall", source=view.id)
    assert found["status"] == "found"
    assert found["box"] is None
    assert f"{where} of this view" in found["outside"]


def test_a_landmark_partly_in_the_view_has_the_part_that_is_seen(session: Session, at: At) -> None:
    view = session.zoom_to("v0", at(30, 50, 60, 80))
    found = session.landmark("Red Hall", source=view.id)
    x_min, _, x_max, _ = found["box"]
    assert x_min == 0
    assert x_max == pytest.approx(1000 / 3, abs=2)
    assert "outside" not in found


def test_a_road_is_projected_as_a_line_that_may_leave_the_view(session: Session) -> None:
    found = session.landmark("Mill Road")
    # (-20, 39), (60, 41) and (140, 40) metres, in a view of 120 m x 80 m.
    assert found["line"] == [[-167, 512], [500, 488], [1167, 500]]
    assert found["box"][0] == 0 and found["box"][2] == 1000
    assert found["type"] == "road"


def test_only_roads_have_a_line(session: Session) -> None:
    assert "line" not in session.landmark("Red Hall")
    assert "line" not in session.landmark("Fountain")


def test_a_winding_line_is_told_in_few_corners(session: Session) -> None:
    line = session.landmark("Snake Lane")["line"]
    assert 2 <= len(line) <= MAX_LINE_POINTS
    assert (line[0][0], line[-1][0]) == (0, 1000)


def test_a_point_landmark_has_a_box_of_one_unit_around_it(session: Session) -> None:
    found = session.landmark("Fountain")
    u, v = 61.3 / 120 * 1000, (80 - 20.7) / 80 * 1000
    x_min, y_min, x_max, y_max = found["box"]
    assert x_min <= u <= x_max and y_min <= v <= y_max
    assert (x_max - x_min, y_max - y_min) == (1, 1)


def test_a_point_landmark_at_whole_units_is_inside_the_view(session: Session) -> None:
    found = session.landmark("Old Well")  # at 60 m, 20 m: exactly [500, 750]
    assert found["center"] == [500, 750]
    assert "outside" not in found
    x_min, y_min, x_max, y_max = found["box"]
    assert x_min <= 500 <= x_max and y_min <= 750 <= y_max


def test_a_straight_road_along_a_whole_unit_is_inside_the_view(session: Session) -> None:
    found = session.landmark("Level Lane")  # 24 m from the south everywhere: exactly 700 units of y
    assert found["line"] == [[33, 700], [417, 700]]
    assert "outside" not in found
    x_min, y_min, x_max, y_max = found["box"]
    assert (x_min, x_max) == (33, 417)
    assert y_min <= 700 <= y_max


# ---- zoom_in


def test_a_zoom_tells_where_it_lies_in_units_in_metres_and_in_size(session: Session, town: Scene) -> None:
    result = session.run(ZoomIn(source_view_id="v0", crop_box=[500, 0, 1000, 500]))
    x, y = town.extent.min_x, town.extent.min_y
    assert result.content == {
        "view_id": "v1",
        "source_view_id": "v0",
        "crop_box": [500, 0, 1000, 500],
        "world": [x + 60, y + 40, x + 120, y + 80],
        "size_m": [60.0, 40.0],
    }
    assert result.view is not None
    assert result.view.bev and result.view.direction is None
    assert result.view.image.shape == (512, 768, 3)


@pytest.mark.parametrize("name", ["red hall", "white car", "red car", "blue car", "orange car", "mercury school"])
def test_a_thing_has_its_colour_where_its_world_coordinates_are_projected_after_any_zooms(
    session: Session,
    things: dict[str, WorldBox],
    colors: dict[str, tuple[int, int, int]],
    name: str,
) -> None:
    thing = things[name]
    chain = [session.views["v0"]]
    for margin in (20.0, 8.0, 1.0):
        chain.append(session.zoom_to(chain[-1].id, thing.grown(margin).clipped(chain[-1].region) or thing))
    for view in chain:
        # Half a metre inside the four corners, and in the middle.
        inside = thing.grown(-0.5)
        for x, y in itertools.product((inside.min_x, thing.center[0], inside.max_x), (inside.min_y, inside.max_y)):
            assert is_color(pixel_at(view, x, y), colors[name]), (view.id, x, y)
        assert not is_color(pixel_at(view, thing.min_x - 0.75, thing.center[1]), colors[name])
    assert [view.id for view in chain] == ["v0", "v1", "v2", "v3"]


def test_the_edges_of_a_thing_lie_where_the_transform_says_within_a_pixel_of_the_photo(
    session: Session, things: dict[str, WorldBox]
) -> None:
    hall = things["red hall"]
    view = session.zoom_to("v0", hall.grown(6))
    # The hall is the only red thing in this view.
    red = (view.image[..., 0].astype(int) - view.image[..., 1] > 100).nonzero()
    transform = transform_of(view)
    x0, y1 = transform.pixel_to_world(red[1].min(), red[0].min())
    x1, y0 = transform.pixel_to_world(red[1].max() + 1, red[0].max() + 1)
    assert (x0, y0, x1, y1) == pytest.approx((hall.min_x, hall.min_y, hall.max_x, hall.max_y), abs=0.25)


@pytest.mark.parametrize(
    "box", [(0, 0, 1000, 1000), (0, 0, 1, 1), (999, 999, 1000, 1000), (333, 1, 335, 998), (10, 500, 990, 501)]
)
def test_a_zooms_crop_box_its_world_box_and_its_transform_are_one_place(session: Session, box: UnitBox) -> None:
    source = session.views["v0"]
    result = session.run(ZoomIn(source_view_id="v0", crop_box=list(box)))
    assert result.view is not None
    extent = transform_of(result.view).extent
    assert result.content["world"] == pytest.approx(
        [extent.min_x, extent.min_y, extent.max_x, extent.max_y], abs=0.0051
    )
    assert tuple(result.content["crop_box"]) == unit_box(source, extent)
    assert result.view.region == extent
    asked = transform_of(source).box_to_world(box)
    for low, high in ((extent.min_x, asked.min_x), (extent.min_y, asked.min_y)):
        assert low <= high + 1e-6
    for low, high in ((asked.max_x, extent.max_x), (asked.max_y, extent.max_y)):
        assert low <= high + 1e-6


@pytest.mark.parametrize(
    "box",
    [(500, 500, 501, 501), (0, 0, 1, 1), (999, 999, 1000, 1000), (500, 0, 501, 1000), (0, 500, 1000, 501)],
)
def test_a_zoom_is_grown_to_a_smallest_size_and_a_plain_shape_within_the_scene(
    session: Session, town: Scene, box: UnitBox
) -> None:
    region = session.zoom("v0", box).region
    assert min(region.width, region.height) >= MIN_CROP_M - 1e-6
    pixel = town.manifest.gsd_m
    assert max(region.width, region.height) / (min(region.width, region.height) + 2 * pixel) <= MAX_ASPECT
    assert town.extent.min_x - 1e-6 <= region.min_x and region.max_x <= town.extent.max_x + 1e-6
    assert town.extent.min_y - 1e-6 <= region.min_y and region.max_y <= town.extent.max_y + 1e-6


def test_a_scale_changes_the_number_of_pixels_and_not_the_place(session: Session) -> None:
    usual, half, double = (session.zoom("v0", (0, 0, 500, 500), scale) for scale in (None, 0.5, 2.0))
    assert usual.region == half.region == double.region
    assert [view.image.shape for view in (half, usual, double)] == [(256, 384, 3), (512, 768, 3), (1024, 1536, 3)]


def test_a_small_crop_is_not_enlarged_beyond_what_can_be_seen(session: Session) -> None:
    view = session.zoom("v0", (500, 500, 520, 530))
    pixels = round(max(view.region.width, view.region.height) / 0.25)
    assert max(view.image.shape) == 8 * pixels < 768


# ---- oblique_render


def test_an_oblique_view_tells_its_direction_its_place_and_its_coverage(
    session: Session, things: dict[str, WorldBox], town: Scene
) -> None:
    hall = things["red hall"]
    result = session.look(hall, "west")
    view = result.view
    assert view is not None
    # Half of the longer side, 20 m, is added around the box; the north edge ends with the scene.
    x, y = town.extent.min_x, town.extent.min_y
    assert result.content["view_id"] == view.id == "o1"
    assert result.content["source_view_id"] == "v0"
    assert result.content["direction"] == view.direction == "west"
    assert result.content["world"] == pytest.approx([x + 10, y + 45, x + 50, y + 80], abs=0.2)
    assert tuple(result.content["region_box"]) == unit_box(session.views["v0"], view.region)
    assert 0.2 < result.content["coverage"] <= 1.0
    assert not view.bev and view.transform is None
    assert max(view.image.shape) == 512


@pytest.mark.parametrize(("margin", "metres"), [(0.0, 5.0), (0.5, 10.0), (1.0, 20.0)])
def test_a_margin_is_ground_around_the_box_in_box_sizes_but_at_least_five_metres(
    session: Session, at: At, margin: float, metres: float
) -> None:
    view = session.look(at(48, 32, 68, 42), "north", margin).view
    assert view is not None
    expected = at(48, 32, 68, 42).grown(metres)
    assert (view.region.min_x, view.region.min_y, view.region.max_x, view.region.max_y) == pytest.approx(
        (expected.min_x, expected.min_y, expected.max_x, expected.max_y), abs=0.3
    )


@pytest.mark.parametrize(("direction", "left_half_is_red"), [("south", True), ("north", False)])
def test_an_oblique_view_is_seen_from_where_the_camera_stands(
    session: Session, at: At, direction: str, left_half_is_red: bool
) -> None:
    # The red hall lies in the west of this ground: on the left from the south, on the right from the north.
    view = session.look(at(30, 55, 60, 70), direction, 0.0).view
    assert view is not None
    image = view.image.astype(int)
    red = (image[..., 0] - image[..., 1] > 100) & (image[..., 0] > 150)
    half = image.shape[1] // 2
    left, right = red[:, :half].sum(), red[:, half:].sum()
    assert (left > 5 * right) if left_half_is_red else (right > 5 * left)


def test_the_same_oblique_view_comes_from_the_cache_and_is_the_same_image(
    session: Session, things: dict[str, WorldBox]
) -> None:
    first = session.look(things["red hall"], "east")
    misses = session.toolbox.views.oblique_cache.stats.misses
    again = session.look(things["red hall"], "east")
    stats = session.toolbox.views.oblique_cache.stats
    assert (stats.memory_hits, stats.misses) == (1, misses)
    assert first.view is not None and again.view is not None
    np.testing.assert_array_equal(first.view.image, again.view.image)
    assert first.content["coverage"] == again.content["coverage"]
    assert (first.view.id, again.view.id) == ("o1", "o2")


def test_other_directions_and_places_are_not_taken_from_the_cache(
    session: Session, things: dict[str, WorldBox]
) -> None:
    images = [
        session.look(things[name], direction).view
        for name in ("red hall", "mercury school")
        for direction in ("north", "south", "east", "west")
    ]
    assert session.toolbox.views.oblique_cache.stats.misses == 8
    shown = [image.image.tobytes() for image in images if image is not None]
    assert len(set(shown)) == 8


# ---- views that cannot be used


def every_call(source: str) -> list[ToolCall]:
    return [
        LandmarkQuery(landmark_name="Red Hall", source_view_id=source),
        ZoomIn(source_view_id=source, crop_box=[0, 0, 500, 500]),
        ObliqueRender(source_view_id=source, candidate_box=[0, 0, 500, 500], direction="north"),
    ]


@pytest.mark.parametrize("source", ["v1", "v9", "o1", "V0", "world"])
def test_a_view_that_was_never_returned_is_refused_and_the_views_are_named(session: Session, source: str) -> None:
    for call in every_call(source):
        with pytest.raises(UnknownView, match=f"no view '{source}'; the views are v0") as caught:
            session.run(call)
        assert caught.value.code == "unknown_view"


def test_an_oblique_view_is_no_source_and_the_usable_views_are_named(
    session: Session, things: dict[str, WorldBox]
) -> None:
    session.zoom("v0", (0, 0, 500, 500))
    view = session.look(things["red hall"]).view
    assert view is not None and view.id == "o2"
    for call in every_call("o2"):
        with pytest.raises(UnknownView, match=r"o2 is an oblique image .*use one of v0, v1$") as caught:
            session.run(call)
        assert caught.value.code == "unknown_view"


def test_a_refused_call_leaves_no_view_behind(session: Session) -> None:
    for call in every_call("v7"):
        with pytest.raises(ToolError):
            session.run(call)
    assert list(session.views) == ["v0"]
    assert session.toolbox.views.oblique_cache.stats.misses == 0


def test_units_are_of_the_view_and_not_of_its_pixels(town: Scene, at: At, tmp_path: Path) -> None:
    for overview in (64, 333, 1024):
        session = Session(town, tmp_path, ImageSizes(overview=overview))
        transform = transform_of(session.views["v0"])
        assert max(session.views["v0"].image.shape) == overview
        assert transform.box_to_unit(at(30, 20, 90, 60)) == (250, 250, 750, 750)
        assert transform.box_to_world((0, 0, UNIT_MAX, UNIT_MAX)) == WorldBox(
            town.extent.min_x, town.extent.min_y, town.extent.max_x, town.extent.max_y
        )
