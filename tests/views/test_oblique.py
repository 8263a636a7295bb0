"""Oblique views: where things appear, what hides what, and what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from wayfix.errors import InvalidArguments
from wayfix.geo.boxes import WorldBox
from wayfix.scene.point_writer import write_points
from wayfix.scene.points import PointStore
from wayfix.views.oblique import BACKGROUND, render_oblique

X0, Y0 = 400_000.0, 5_000_000.0
REGION = WorldBox(X0, Y0, X0 + 40, Y0 + 40)
GREY, RED, GREEN, BLUE, WHITE = (90, 90, 90), (200, 0, 0), (0, 200, 0), (0, 0, 200), (250, 250, 250)
SIDES = ("north", "south", "east", "west")


def slab(
    x: tuple[float, float], y: tuple[float, float], z: tuple[float, float], step: float = 0.25
) -> NDArray[np.float64]:
    """Points on a grid that fills a box given by its edges relative to (X0, Y0, 0)."""
    axes = [np.linspace(a, b, max(1, round((b - a) / step))) for a, b in (x, y, z)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3) + np.array([X0, Y0, 0.0])


def store_of(folder: Path, *parts: tuple[NDArray[np.float64], tuple[int, int, int], int]) -> PointStore:
    xyz = np.concatenate([p[0] for p in parts])
    rgb = np.concatenate([np.tile(np.array(p[1], np.uint8), (len(p[0]), 1)) for p in parts])
    classes = np.concatenate([np.full(len(p[0]), p[2], np.uint8) for p in parts])
    write_points(folder, xyz, rgb, classes)
    return PointStore.open(folder)


def ground(colour: tuple[int, int, int] = GREY) -> tuple[NDArray[np.float64], tuple[int, int, int], int]:
    return slab((0, 40), (0, 40), (0, 0)), colour, 2


def where(image: NDArray[np.uint8], colour: tuple[int, int, int]) -> tuple[float, float]:
    """Centre (column, row) of the pixels of a colour, as fractions of the image."""
    rows, cols = np.nonzero((image == colour).all(axis=2))
    assert len(rows), f"nothing is drawn in {colour}"
    return (cols.mean() + 0.5) / image.shape[1], (rows.mean() + 0.5) / image.shape[0]


# A patch in the east of the region is seen ...
EAST_PATCH = {"north": "left", "south": "right", "east": "bottom", "west": "top"}
NORTH_PATCH = {"north": "bottom", "south": "top", "east": "right", "west": "left"}


@pytest.mark.parametrize("direction", SIDES)
@pytest.mark.parametrize(("patch", "place"), [((34, 38, 18, 22), EAST_PATCH), ((18, 22, 34, 38), NORTH_PATCH)])
def test_the_direction_says_where_the_camera_stands(
    tmp_path: Path, direction: str, patch: tuple[float, float, float, float], place: dict[str, str]
) -> None:
    marked = slab(patch[:2], patch[2:], (0.3, 0.3))
    col, row = where(render_oblique(store_of(tmp_path, ground(), (marked, RED, 1)), REGION, direction, 128).image, RED)
    expected = {"left": (0.1, 0.5), "right": (0.9, 0.5), "top": (0.5, 0.1), "bottom": (0.5, 0.9)}[place[direction]]
    assert (col, row) == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("direction", SIDES)
def test_a_wall_hides_what_stands_behind_it_and_not_what_stands_before_it(tmp_path: Path, direction: str) -> None:
    wall = slab((10, 30), (19.75, 20.25), (0, 12), 0.2)
    north, south = slab((18, 22), (25, 27), (0, 1)), slab((18, 22), (13, 15), (0, 1))
    if direction in ("east", "west"):
        turn = np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1.0]])
        base = np.array([X0, Y0, 0.0])
        wall, north, south = ((p - base) @ turn + base for p in (wall, north, south))
    image = render_oblique(
        store_of(tmp_path, ground(), (wall, WHITE, 6), (north, BLUE, 1), (south, RED, 1)), REGION, direction, 160
    ).image
    before, behind = (BLUE, RED) if direction in ("north", "east") else (RED, BLUE)
    assert where(image, before)
    assert not (image == behind).all(axis=2).any()


def test_higher_points_appear_higher(tmp_path: Path) -> None:
    roof, foot = slab((18, 22), (18, 22), (15, 15)), slab((26, 30), (18, 22), (0.3, 0.3))
    image = render_oblique(store_of(tmp_path, ground(), (roof, RED, 6), (foot, GREEN, 1)), REGION, "south", 128).image
    assert where(image, RED)[1] < where(image, GREEN)[1] - 0.2


def test_a_sparse_wall_stays_a_wall(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wall = slab((10, 30), (20, 20), (0, 12))[::4] + rng.normal(0, 0.05, 3)
    image = render_oblique(store_of(tmp_path, ground(), (wall, WHITE, 6)), REGION, "south", 256).image
    rows, cols = np.nonzero((image == WHITE).all(axis=2))
    inner = image[rows.min() + 8 : rows.max() - 8, cols.min() + 8 : cols.max() - 8]
    assert (inner == WHITE).all(axis=2).mean() > 0.9


@pytest.mark.parametrize(("width", "depth"), [(40.0, 40.0), (40.0, 10.0), (10.0, 40.0)])
@pytest.mark.parametrize("direction", SIDES)
def test_the_longer_side_is_the_size_and_the_hull_fits(
    tmp_path: Path, direction: str, width: float, depth: float
) -> None:
    tower = slab((4, 6), (4, 6), (0, 9.0))
    store = store_of(tmp_path, ground(), (tower, RED, 6))
    view = render_oblique(store, WorldBox(X0, Y0, X0 + width, Y0 + depth), direction, 200)
    across, along = (width, depth) if direction in ("north", "south") else (depth, width)
    tall = (along + 9) * np.sqrt(0.5)
    assert view.image.dtype == np.uint8 and view.image.shape[2] == 3
    assert max(view.image.shape[:2]) == 200
    assert view.m_per_px == pytest.approx(max(across, tall) / 200)
    assert view.image.shape[0] == pytest.approx(tall / view.m_per_px, abs=1)
    assert view.image.shape[1] == pytest.approx(across / view.m_per_px, abs=1)
    assert (view.direction, view.region.width) == (direction, width)


def test_flat_ground_covers_the_whole_image(tmp_path: Path) -> None:
    view = render_oblique(store_of(tmp_path, ground()), REGION, "west", 128)
    assert view.coverage > 0.98
    assert (view.image == GREY).all(axis=2).mean() > 0.98


def test_only_points_above_the_region_are_drawn(tmp_path: Path) -> None:
    outside = slab((41, 60), (0, 40), (0, 50), 0.5)
    view = render_oblique(store_of(tmp_path, ground(), (outside, RED, 6)), REGION, "south", 128)
    assert view.image.shape[0] == pytest.approx(128 * np.sqrt(0.5), abs=1)
    assert not (view.image == RED).all(axis=2).any()


def test_heights_of_the_region_are_not_used(tmp_path: Path) -> None:
    store = store_of(tmp_path, ground())
    low = WorldBox(REGION.min_x, REGION.min_y, REGION.max_x, REGION.max_y, 90.0, 99.0)
    np.testing.assert_array_equal(
        render_oblique(store, low, "north", 64).image, render_oblique(store, REGION, "north", 64).image
    )


@pytest.mark.parametrize("noise", [7, 18])
def test_points_classified_as_noise_change_nothing(tmp_path: Path, noise: int) -> None:
    bird = np.array([[X0 + 20, Y0 + 20, 500.0]])
    clean = render_oblique(store_of(tmp_path / "a", ground()), REGION, "north", 64)
    noisy = render_oblique(store_of(tmp_path / "b", ground(), (bird, RED, noise)), REGION, "north", 64)
    np.testing.assert_array_equal(clean.image, noisy.image)


@pytest.mark.parametrize("shift", [1000.0, 0.0])
def test_a_region_without_points_is_background(tmp_path: Path, shift: float) -> None:
    corner = slab((0, 40), (0, 1), (0, 0))  # the same tile as the empty rectangle asked for
    store = store_of(tmp_path, (corner, RED, 2), (slab((0, 40), (19, 19.9), (0, 0)), RED, 2))
    view = render_oblique(store, WorldBox(X0 + shift, Y0 + 5, X0 + shift + 10, Y0 + 10), "north", 64)
    assert view.coverage == 0.0
    assert (view.image == BACKGROUND).all()


def test_rendering_is_deterministic(tmp_path: Path) -> None:
    store = store_of(tmp_path, ground(), (slab((5, 9), (5, 9), (0, 6)), RED, 6))
    a, b = (render_oblique(store, REGION, "east", 96) for _ in range(2))
    np.testing.assert_array_equal(a.image, b.image)


def test_a_large_region_is_thinned_and_still_covered(tmp_path: Path) -> None:
    view = render_oblique(store_of(tmp_path, (slab((0, 40), (0, 40), (0, 0), 0.08), GREY, 2)), REGION, "south", 40)
    assert (view.image == GREY).all(axis=2).mean() > 0.97


@pytest.mark.parametrize("direction", ["up", "North", "", "north-east"])
def test_an_unknown_direction_is_an_invalid_argument(tmp_path: Path, direction: str) -> None:
    with pytest.raises(InvalidArguments, match="north, south, east, west"):
        render_oblique(store_of(tmp_path, ground()), REGION, direction)


def test_a_region_without_area_or_an_image_without_pixels_is_an_invalid_argument(tmp_path: Path) -> None:
    store = store_of(tmp_path, ground())
    with pytest.raises(InvalidArguments):
        render_oblique(store, WorldBox(X0, Y0, X0, Y0 + 5), "north")
    with pytest.raises(InvalidArguments):
        render_oblique(store, REGION, "north", 0)
