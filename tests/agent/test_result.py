"""The GeoJSON Feature of a result: valid, complete, in the right order of axes, and true JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import shapely.geometry
from pyproj import Transformer

from wayfix.agent.loop import Grounder
from wayfix.agent.protocol import format_answer, format_call, format_not_found
from wayfix.agent.result import GroundResult
from wayfix.errors import DeadlineExceeded
from wayfix.geo.boxes import WorldBox
from wayfix.policy.baseline import BaselinePolicy
from wayfix.policy.interface import Alternative, Chunk
from wayfix.policy.scripted import ScriptedPolicy, Turn
from wayfix.scene.scene import Scene
from wayfix.synth.expressions import Expression

At = Callable[[float, float, float, float], WorldBox]
PROPERTIES = {
    "query", "code", "message", "partial", "confidence", "policy", "scene", "revision", "survey_date", "box", "crs",
    "vertical_datum", "enu", "uncertainty_m", "alternatives", "turns", "time_ms", "budget_ms", "attribution",
}  # fmt: skip
ZOOM = format_call("zoom_in", {"source_view_id": "v0", "crop_box": [0, 0, 500, 500]})
CAR = Chunk(
    format_answer("v0", (350, 212, 388, 238)), 0.87654321, (Alternative("v0", (500, 500, 1000, 1000), 0.123456),)
)


def search(scene: Scene, turns: Sequence[Turn], budget_s: float | None = None) -> GroundResult:
    return Grounder(scene, ScriptedPolicy(turns)).ground("the white car", budget_s)[0]


def feature(scene: Scene, turns: Sequence[Turn], budget_s: float | None = None) -> dict[str, Any]:
    """The feature after a way through JSON text."""
    return check(search(scene, turns, budget_s).feature(scene))


def check(made: dict[str, Any]) -> dict[str, Any]:
    """What holds for every feature."""
    read = json.loads(json.dumps(made, allow_nan=False))
    assert read == made
    assert set(read) == {"type", "geometry", "properties"}
    assert read["type"] == "Feature"
    assert set(read["properties"]) == PROPERTIES
    assert (read["geometry"] is None) == (read["properties"]["box"] is None) == (read["properties"]["enu"] is None)
    if read["geometry"] is not None:
        assert_footprint(read["geometry"])
    for alternative in read["properties"]["alternatives"]:
        assert set(alternative) == {"confidence", "box", "geometry"}
        assert_footprint(alternative["geometry"])
    return read


def assert_footprint(geometry: dict[str, Any]) -> None:
    assert geometry["type"] == "Polygon"
    (ring,) = geometry["coordinates"]
    assert len(ring) == 5 and ring[0] == ring[-1]
    shape = shapely.geometry.shape(geometry)
    assert shape.is_valid and shape.exterior.is_ccw and shape.area > 0


def test_a_found_object_has_all_properties(town: Scene, at: At) -> None:
    made = feature(town, [ZOOM, CAR], 30.0)["properties"]
    box = at(42, 60.96, 46.56, 63.04)
    assert made["time_ms"] > 0
    del made["time_ms"], made["enu"], made["alternatives"]
    assert made == {
        "query": "the white car",
        "code": "ok",
        "message": "found",
        "partial": False,
        "confidence": 0.8765,
        "policy": "scripted",
        "scene": "town",
        "revision": 3,
        "survey_date": "2024-05-01",
        "box": {
            "min_x": pytest.approx(box.min_x),
            "min_y": pytest.approx(box.min_y),
            "min_z": 50.0,
            "max_x": pytest.approx(box.max_x),
            "max_y": pytest.approx(box.max_y),
            "max_z": 51.5,
        },
        "crs": "EPSG:32631",
        "vertical_datum": "local",
        "uncertainty_m": pytest.approx((0.25**2 + 0.12**2) ** 0.5, abs=0.001),
        "turns": 2,
        "budget_ms": 30_000.0,
        "attribution": ["© OpenStreetMap contributors"],
    }


def test_the_geometry_is_the_box_in_wgs84_with_longitude_first(town: Scene, at: At) -> None:
    geometry = feature(town, [format_answer("v0", (0, 0, 500, 1000))])["geometry"]
    box = at(0, 0, 60, 80)
    to_wgs84 = Transformer.from_crs("EPSG:32631", "EPSG:4326", always_xy=True)
    corners = [(x, y) for x in (box.min_x, box.max_x) for y in (box.min_y, box.max_y)]
    expected = sorted(to_wgs84.transform(x, y) for x, y in corners)
    np.testing.assert_allclose(sorted(map(tuple, geometry["coordinates"][0][:4])), expected, atol=1e-9)
    assert all(3.1 < lon < 3.2 and 51.4 < lat < 51.5 for lon, lat in geometry["coordinates"][0])


def test_the_pose_is_in_the_scenes_own_east_north_up_frame(town: Scene) -> None:
    made = feature(town, [format_answer("v0", (500, 0, 1000, 500))])["properties"]
    enu = made["enu"]
    assert set(enu) == {"frame", "center", "size", "yaw"}
    assert enu["frame"] == "wayfix/town"
    # The scene's middle is the origin: the box is 60 m x 40 m in its north-east; the grid's scale is 0.9996.
    assert (enu["center"]["x"], enu["center"]["y"]) == pytest.approx((30, 20), abs=0.1)
    assert (enu["size"]["x"], enu["size"]["y"]) == pytest.approx((60 / 0.9996, 40 / 0.9996), abs=0.005)
    assert enu["center"]["z"] == pytest.approx((made["box"]["min_z"] + made["box"]["max_z"]) / 2 - 50.0)
    assert enu["size"]["z"] == pytest.approx(made["box"]["max_z"] - made["box"]["min_z"])
    # East of the zone's central meridian grid north is turned clockwise, so the box is too.
    assert enu["yaw"] == pytest.approx(-np.radians(town.manifest.convergence_deg), abs=1e-5)
    assert enu["yaw"] < 0


def test_alternatives_have_a_box_and_a_footprint_each(town: Scene, at: At) -> None:
    (alternative,) = feature(town, [CAR])["properties"]["alternatives"]
    box = at(60, 0, 120, 40)
    assert alternative["confidence"] == 0.1235
    assert (alternative["box"]["min_x"], alternative["box"]["max_y"]) == pytest.approx((box.min_x, box.max_y))


def test_heights_are_null_where_they_are_not_known(bare_town: Scene) -> None:
    made = feature(bare_town, [CAR])["properties"]
    assert (made["box"]["min_z"], made["box"]["max_z"]) == (None, None)
    assert (made["enu"]["center"]["z"], made["enu"]["size"]["z"]) == (None, None)


def test_heights_are_null_and_not_nan_in_a_hole_of_the_grids(town: Scene) -> None:
    made = feature(town, [format_answer("v0", (950, 950, 990, 990))])["properties"]
    assert (made["box"]["min_z"], made["box"]["max_z"]) == (None, None)


@pytest.mark.parametrize(
    ("turns", "code"),
    [
        ([ZOOM, format_not_found()], "not_found"),
        ([DeadlineExceeded("late")], "deadline_exceeded"),
        ([RuntimeError("boom")], "policy_failed"),
        (["hm"] * 8, "turns_exhausted"),
    ],
)
def test_without_a_box_geometry_box_and_pose_are_null_and_all_else_is_there(
    town: Scene, turns: list[Turn], code: str
) -> None:
    made = feature(town, turns)
    assert made["geometry"] is None
    properties = made["properties"]
    assert (properties["code"], properties["partial"]) == (code, False)
    for absent in ("box", "enu", "uncertainty_m", "confidence", "budget_ms"):
        assert properties[absent] is None
    assert properties["alternatives"] == []


def test_a_partial_box_is_marked_and_says_why(town: Scene) -> None:
    made = feature(town, [ZOOM, DeadlineExceeded("the budget ended")])
    assert made["geometry"] is not None
    properties = made["properties"]
    assert (properties["code"], properties["message"], properties["partial"]) == (
        "deadline_exceeded",
        "the budget ended",
        True,
    )
    assert properties["uncertainty_m"] > 30


def test_an_untimed_result_differs_from_the_result_in_nothing_but_time(town: Scene) -> None:
    result = search(town, [ZOOM, CAR], 30.0)
    untimed = result.untimed()
    assert (untimed.time_ms, untimed.budget_ms) == (0.0, None)
    ours, theirs = result.feature(town), untimed.feature(town)
    for made in (ours, theirs):
        del made["properties"]["time_ms"], made["properties"]["budget_ms"]
    assert ours == theirs


def test_every_answer_in_the_small_city_is_a_valid_feature(
    small_city_scene: Scene, small_city_expressions: list[Expression]
) -> None:
    grounder = Grounder(small_city_scene, BaselinePolicy())
    codes = []
    for expression in small_city_expressions[:8]:
        result = grounder.ground(expression.query)[0]
        made = check(result.feature(small_city_scene))
        codes.append(made["properties"]["code"])
    assert set(codes) <= {"ok", "not_found"}
    assert "ok" in codes
