"""The images of a scene: what is cut lies where its transform says, and heights fit the pixels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfix.geo.boxes import WorldBox
from wayfix.geo.transforms import ViewTransform
from wayfix.scene.scene import Scene
from wayfix.views.scene_views import MAX_ASPECT, MAX_UPSAMPLING, MIN_CROP_M, CacheBudget, SceneViews

At = Callable[[float, float, float, float], WorldBox]
GSD = 0.25


@pytest.fixture
def views(town: Scene, tmp_path: Path) -> SceneViews:
    return SceneViews(town, cache_folder=tmp_path)


def color_at(image: np.ndarray, transform: ViewTransform, x: float, y: float) -> np.ndarray:
    column, row = transform.world_to_pixel(x, y)
    return image[int(row), int(column)].astype(int)


# ---- the whole scene


@pytest.mark.parametrize("long_side", [30, 120, 240, 480, 1024])
def test_the_overview_shows_the_whole_scene_with_the_long_side_asked_for(
    views: SceneViews, town: Scene, long_side: int
) -> None:
    image, transform = views.overview(long_side)
    assert image.shape == (round(long_side * 80 / 120), long_side, 3)
    assert image.dtype == np.uint8
    assert (transform.width, transform.height) == (image.shape[1], image.shape[0])
    assert transform.extent == WorldBox(town.extent.min_x, town.extent.min_y, town.extent.max_x, town.extent.max_y)


def test_the_overview_is_cut_once_and_cannot_be_changed(views: SceneViews) -> None:
    image, _ = views.overview(200)
    assert views.overview(200)[0] is image
    with pytest.raises(ValueError, match="read-only"):
        image[0, 0] = 0


@pytest.mark.parametrize("long_side", [120, 240, 480, 960])
def test_things_are_where_they_stand_at_every_resolution(
    views: SceneViews,
    things: dict[str, WorldBox],
    colors: dict[str, tuple[int, int, int]],
    long_side: int,
) -> None:
    image, transform = views.overview(long_side)
    for name in ("red hall", "mercury school", "tree"):
        inside = things[name].grown(-1.5)
        for x, y in ((inside.min_x, inside.min_y), (inside.max_x, inside.max_y), inside.center):
            assert np.abs(color_at(image, transform, x, y) - colors[name]).max() <= 12


# ---- zooms


def test_a_zoom_at_the_photos_own_resolution_is_the_photo(views: SceneViews, town: Scene, at: At) -> None:
    image, transform = views.zoom(at(15, 50, 55, 75), 160)
    assert image.shape == (100, 160, 3)
    assert transform.extent == at(15, 50, 55, 75)
    np.testing.assert_array_equal(image, town.bev.read(0, 60, 20, 160, 100))


@pytest.mark.parametrize("long_side", [40, 160, 768])
def test_a_zoom_has_the_long_side_asked_for_whichever_side_is_long(views: SceneViews, at: At, long_side: int) -> None:
    wide, _ = views.zoom(at(10, 10, 70, 40), long_side)
    tall, _ = views.zoom(at(10, 10, 40, 70), long_side)
    assert wide.shape == (long_side // 2, long_side, 3)
    assert tall.shape == (long_side, long_side // 2, 3)


def test_a_zoom_is_enlarged_at_most_eight_times(views: SceneViews, at: At) -> None:
    image, transform = views.zoom(at(30, 30, 38, 36), 4000)
    assert image.shape == (24 * 8, 32 * 8, 3)
    assert transform.a == pytest.approx(GSD / MAX_UPSAMPLING)


def test_a_zoom_of_the_edge_of_a_thing_grows_outwards_to_whole_pixels(views: SceneViews, at: At) -> None:
    _, transform = views.zoom(at(20.1, 55.1, 39.9, 69.9), 768)
    assert transform.extent == at(20, 55, 40, 70)


coordinate = st.floats(0.0, 1.0)


@settings(max_examples=60)
@given(coordinate, coordinate, coordinate, coordinate, st.integers(16, 300))
def test_any_zoom_covers_what_was_asked_for_lies_in_the_scene_and_is_no_strip(
    town: Scene, at: At, x: float, y: float, width: float, height: float, long_side: int
) -> None:
    x0, y0 = 119 * x, 79 * y
    box = at(x0, y0, x0 + 0.01 + (119.99 - x0) * width, y0 + 0.01 + (79.99 - y0) * height)
    image, transform = SceneViews(town, CacheBudget(0, 0)).zoom(box, long_side)
    extent, scene = transform.extent, town.extent
    tolerance = 1e-6
    assert extent.min_x <= box.min_x + tolerance and extent.max_x >= box.max_x - tolerance
    assert extent.min_y <= box.min_y + tolerance and extent.max_y >= box.max_y - tolerance
    assert extent.min_x >= scene.min_x - tolerance and extent.max_x <= scene.max_x + tolerance
    assert extent.min_y >= scene.min_y - tolerance and extent.max_y <= scene.max_y + tolerance
    short, long = sorted((extent.width, extent.height))
    assert short >= MIN_CROP_M - tolerance
    # Growing outwards to whole pixels of a level, here at most 0.5 m, may lengthen the long side after the rule.
    assert (long - 1.0) / short <= MAX_ASPECT + tolerance
    assert (transform.width, transform.height) == (image.shape[1], image.shape[0])
    assert max(image.shape[:2]) <= long_side
    # Pixels are square up to rounding the short side to whole ones.
    assert transform.a * image.shape[1] / -(transform.e * image.shape[0]) == pytest.approx(extent.width / extent.height)
    assert image.shape[1] == pytest.approx(extent.width * max(image.shape[:2]) / long, abs=0.51)


def test_a_zoom_at_the_scenes_corner_is_moved_inside(views: SceneViews, at: At, town: Scene) -> None:
    _, transform = views.zoom(at(119.9, 0, 120, 0.1), 64)
    assert transform.extent == at(116, 0, 120, 4)


# ---- heights


def test_heights_above_ground_fit_the_pixels_of_a_view(views: SceneViews, at: At, things: dict[str, WorldBox]) -> None:
    image, transform = views.zoom(at(15, 50, 80, 75), 650)
    heights = views.heights_above_ground(transform)
    assert heights is not None
    assert heights.shape == image.shape[:2]
    for name, height in (("red hall", 9.0), ("white car", 1.5), ("red car", 1.5)):
        inside = things[name].grown(-0.5)
        for x, y in ((inside.min_x, inside.min_y), (inside.max_x, inside.max_y), inside.center):
            column, row = transform.world_to_pixel(x, y)
            assert heights[int(row), int(column)] == pytest.approx(height), name
    column, row = transform.world_to_pixel(*at(50, 52, 51, 53).center)
    assert heights[int(row), int(column)] == pytest.approx(0.0)


def test_heights_are_nan_where_they_are_not_known(views: SceneViews, at: At) -> None:
    _, transform = views.zoom(at(100, 0, 120, 20), 80)
    heights = views.heights_above_ground(transform)
    assert heights is not None
    assert np.isnan(heights[42:, 42:]).all()  # the hole is the south-eastern quarter
    assert np.isfinite(heights[:38]).all() and np.isfinite(heights[:, :38]).all()


def test_a_scene_without_heights_has_none(bare_town: Scene, at: At) -> None:
    views = SceneViews(bare_town, CacheBudget(0, 0))
    _, transform = views.overview(100)
    assert views.heights_above_ground(transform) is None


# ---- oblique views


def test_an_oblique_view_is_rendered_once_and_then_comes_from_memory(views: SceneViews, at: At) -> None:
    first, coverage = views.oblique(at(15, 50, 55, 75), "south", 96)
    again, same = views.oblique(at(15, 50, 55, 75), "south", 96)
    np.testing.assert_array_equal(first, again)
    assert coverage == same and 0 < coverage <= 1
    assert (views.oblique_cache.stats.misses, views.oblique_cache.stats.memory_hits) == (1, 1)
    assert max(first.shape) == 96


def test_an_oblique_view_is_found_on_disk_by_the_next_process(town: Scene, tmp_path: Path, at: At) -> None:
    first, coverage = SceneViews(town, cache_folder=tmp_path).oblique(at(15, 50, 55, 75), "south", 96)
    later = SceneViews(town, cache_folder=tmp_path)
    again, same = later.oblique(at(15, 50, 55, 75), "south", 96)
    assert later.oblique_cache.stats.disk_hits == 1
    assert same == coverage
    assert again.shape == first.shape
    assert np.abs(again.astype(int) - first.astype(int)).mean() < 6  # a way through JPEG


def test_oblique_views_of_other_sizes_places_and_directions_are_others(views: SceneViews, at: At) -> None:
    views.oblique(at(15, 50, 55, 75), "south", 96)
    views.oblique(at(15, 50, 55, 75), "south", 97)
    views.oblique(at(15, 50, 55, 75), "north", 96)
    views.oblique(at(15, 50, 55, 75.5), "south", 96)
    assert (views.oblique_cache.stats.misses, views.oblique_cache.stats.memory_hits) == (4, 0)


def test_images_are_cached_in_the_scenes_own_folder_by_revision(town: Scene, at: At) -> None:
    SceneViews(town).oblique(at(60, 5, 100, 30), "west", 64)
    assert any((town.folder / "cache" / "r3").iterdir())
    assert town.problems() == []
