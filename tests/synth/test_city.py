from __future__ import annotations

import numpy as np
import pytest
from shapely.geometry import LineString, Polygon

from wayfix.errors import InvalidOption
from wayfix.geo.boxes import WorldBox
from wayfix.synth.catalogue import MIN_ROAD_M
from wayfix.synth.city import City, CityConfig, build_city
from wayfix.synth.names import MIN_EDITS, edit_distance


def test_equal_configs_give_equal_cities() -> None:
    config = CityConfig(5, size_m=150.0, gsd_m=0.2)
    first, second = build_city(config), build_city(config)
    assert first.objects == second.objects
    assert first.extent == second.extent
    assert [mark.name for mark in first.landmarks] == [mark.name for mark in second.landmarks]
    for layer in ("bev", "dsm", "dtm", "points_xyz", "points_rgb", "points_class"):
        assert np.array_equal(getattr(first, layer), getattr(second, layer))


def test_seed_and_split_change_the_city() -> None:
    base, seed, split = (
        build_city(CityConfig(s, size_m=150.0, gsd_m=0.5, split=split, points_per_m2=0.1))
        for s, split in ((5, "train"), (6, "train"), (5, "val"))
    )
    assert not np.array_equal(base.bev, seed.bev)
    assert not np.array_equal(base.bev, split.bev)


def test_layers_have_their_documented_shapes_and_types(city: City) -> None:
    assert (city.bev.shape, city.bev.dtype) == ((3000, 3000, 3), np.uint8)
    for grid in (city.dsm, city.dtm):
        assert (grid.shape, grid.dtype) == ((600, 600), np.float32)
    count = len(city.points_xyz)
    assert (city.points_xyz.dtype, city.points_xyz.shape) == (np.float64, (count, 3))
    assert (city.points_rgb.dtype, city.points_rgb.shape) == (np.uint8, (count, 3))
    assert (city.points_class.dtype, city.points_class.shape) == (np.uint8, (count,))
    assert set(np.unique(city.points_class)) == {2, 5, 6, 64}
    assert count >= 12 * 300 * 300


def test_every_scene_has_enough_buildings_and_cars(cities: list[City]) -> None:
    for city in cities:
        assert sum(item.kind == "building" for item in city.objects) >= 25
        assert sum(item.kind == "car" for item in city.objects) >= 60


def test_ids_are_the_places_in_the_list(cities: list[City]) -> None:
    for city in cities:
        assert [item.id for item in city.objects] == list(range(len(city.objects)))


def test_boxes_are_the_hulls_of_their_footprints(cities: list[City]) -> None:
    for item in (item for city in cities for item in city.objects if item.kind != "road"):
        xs, ys = zip(*item.corners, strict=True)
        box = item.box
        assert (box.min_x, box.min_y, box.max_x, box.max_y) == (min(xs), min(ys), max(xs), max(ys))


def test_roads_lie_in_their_boxes_and_all_have_names(cities: list[City]) -> None:
    for item in (item for city in cities for item in city.objects if item.kind == "road"):
        assert item.name
        assert all(item.box.contains(x, y) for x, y in item.corners)


def test_buildings_and_cars_lie_in_the_extent_and_do_not_overlap(cities: list[City]) -> None:
    for city in cities:
        solids = [item for item in city.objects if item.kind in ("building", "car")]
        shapes = [Polygon(item.corners) for item in solids]
        for i, (item, shape) in enumerate(zip(solids, shapes, strict=True)):
            assert item.box.clipped(city.extent) == item.box
            assert not any(shape.intersection(other).area > 0.05 for other in shapes[:i])


def test_boxes_heights_agree_with_what_was_surveyed(city: City) -> None:
    extent = city.extent
    roofs = city.points_xyz[city.points_class == 6]
    for item in (item for item in city.objects if item.kind == "building"):
        box = item.box
        assert box.min_z is not None and box.max_z is not None
        assert box.max_z - box.min_z == pytest.approx(item.height_m)
        row, col = int((extent.max_y - box.center[1]) / 0.5), int((box.center[0] - extent.min_x) / 0.5)
        assert box.min_z == pytest.approx(float(city.dtm[row, col]), abs=0.8)
        inside = np.hypot(*(roofs[:, :2] - box.center).T) < min(box.width, box.height) / 2
        top = roofs[inside, 2].max()
        assert box.min_z + 0.5 * item.height_m <= top <= box.max_z + 0.15


def test_cars_stand_above_the_terrain_by_their_height(city: City) -> None:
    cars = [item for item in city.objects if item.kind == "car"]
    tops = city.points_xyz[city.points_class == 64]
    for item in cars[::10]:
        box = item.box
        inside = (
            (tops[:, 0] > box.min_x) & (tops[:, 0] < box.max_x) & (tops[:, 1] > box.min_y) & (tops[:, 1] < box.max_y)
        )
        shape = Polygon(item.corners)
        own = [z for x, y, z in tops[inside] if shape.buffer(-0.1).covers(Polygon([(x, y)] * 4).centroid)]
        assert box.min_z is not None and box.max_z is not None
        assert max(own) == pytest.approx(box.max_z, abs=0.25)


def test_image_is_aligned_with_the_boxes(city: City) -> None:
    red = [item for item in city.objects if item.color == "red" and item.category in ("van", "bus", "truck")]
    assert red
    for item in red:
        col = int((item.box.center[0] - city.extent.min_x) / 0.1)
        row = int((city.extent.max_y - item.box.center[1]) / 0.1)
        r, g, b = city.bev[row - 4 : row + 5, col - 4 : col + 5].reshape(-1, 3).mean(axis=0)
        assert r > 1.5 * max(g, b)


def test_trees_leave_every_target_mostly_visible(cities: list[City]) -> None:
    for city in cities:
        assert city.visible.min() >= 0.7


def test_landmarks_are_the_named_objects(cities: list[City]) -> None:
    for city in cities:
        named = [item for item in city.objects if item.name]
        assert [item.name for item in named] == [mark.name for mark in city.landmarks]
        for item, mark in zip(named, city.landmarks, strict=True):
            assert isinstance(mark.geometry, LineString if item.kind == "road" else Polygon)
        buildings = [item for item in city.objects if item.kind == "building"]
        assert 0.3 <= sum(item.name is not None for item in buildings) / len(buildings) <= 0.75


def test_names_of_a_scene_cannot_be_mixed_up(cities: list[City]) -> None:
    names = [name for mark in cities[0].landmarks for name in (mark.name, *mark.aliases)]
    assert all(edit_distance(a, b) >= MIN_EDITS for i, a in enumerate(names) for b in names[:i])


def test_splits_share_no_names(cities: list[City]) -> None:
    stems: dict[str, set[str]] = {"train": set(), "val": set(), "test": set()}
    for city in cities:
        stems[city.config.split] |= {mark.name.removeprefix("Car Park of ").split()[0] for mark in city.landmarks}
    assert not stems["train"] & stems["val"]
    assert not stems["train"] & stems["test"]
    assert not stems["val"] & stems["test"]


def distance_to_edge(extent: WorldBox, x: float, y: float) -> float:
    return min(x - extent.min_x, extent.max_x - x, y - extent.min_y, extent.max_y - y)


def test_driving_cars_keep_right_of_their_road(cities: list[City]) -> None:
    for city in cities:
        roads = {item.id: LineString(item.corners) for item in city.objects if item.kind == "road"}
        for item in (item for item in city.objects if item.state == "driving"):
            near = sorted((line.distance(Polygon(item.corners).centroid), i) for i, line in roads.items())
            if near[0][0] > 8.0:
                # A road of which only the end lies in the scene is drawn, and driven on, but not told.
                assert distance_to_edge(city.extent, *item.box.center) < MIN_ROAD_M
                continue
            road = city.objects[near[0][1]]
            turn = (item.heading_deg - road.heading_deg) % 180.0
            assert min(turn, 180.0 - turn) < 5.0


@pytest.mark.parametrize(
    "config",
    [
        CityConfig(1, split="training"),
        CityConfig(1, size_m=20.0),
        CityConfig(1, gsd_m=0.0),
        CityConfig(1, gsd_m=0.07),
        CityConfig(-1),
    ],
)
def test_a_senseless_config_is_refused(config: CityConfig) -> None:
    with pytest.raises(InvalidOption):
        build_city(config)
