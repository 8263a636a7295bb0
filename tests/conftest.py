"""Two kinds of scene for every package: a small synthetic city, and a hand-made town in which every number is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import shapely
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray
from pyproj import CRS

from wayfix.geo.boxes import WorldBox
from wayfix.scene.folder import new_folder
from wayfix.scene.landmark import Landmark
from wayfix.scene.scene import Scene
from wayfix.scene.writer import SceneWriter
from wayfix.synth.city import City, CityConfig, build_city
from wayfix.synth.expressions import Expression, make_expressions
from wayfix.synth.write import write_city

# No example is timed: a busy machine must not fail a test.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# ---- the hand-made town: 120 m x 80 m, its south-west corner at EAST, NORTH

EAST, NORTH = 512_300.0, 5_700_500.0
WIDTH, HEIGHT = 120.0, 80.0
PIXEL, CELL = 0.25, 0.5
GRASS = (150, 150, 120)
LOW_GROUND, HIGH_GROUND, STEP_AT = 50.0, 52.0, 60.0
"""Ground heights west and east of x = STEP_AT."""

THINGS: dict[str, tuple[tuple[float, float, float, float], tuple[int, int, int], float]] = {
    "mill road": ((0, 37, 120, 43), (90, 90, 95), 0.0),
    "red hall": ((20, 55, 40, 70), (200, 40, 35), 9.0),
    "mercury school": ((80, 8, 98, 22), (125, 75, 50), 12.0),
    "white car": ((42, 61, 46.5, 63), (240, 240, 240), 1.5),
    "red car": ((70, 60, 74.5, 62), (205, 30, 30), 1.5),
    "blue car": ((70, 63, 74.5, 65), (30, 60, 210), 1.5),
    "orange car": ((60, 31, 64.5, 33), (240, 130, 20), 1.5),
    "tree": ((100, 26, 108, 34), (60, 95, 45), 6.0),
}
"""Name -> (metres from the south-west corner: west, south, east, north), colour, height above ground."""

UNKNOWN_HEIGHTS = (110.0, 0.0, 120.0, 10.0)
"""Where neither surface nor ground height is known."""


def place(x0: float, y0: float, x1: float, y1: float) -> WorldBox:
    """A world box from metres east and north of the town's south-west corner."""
    return WorldBox(EAST + x0, NORTH + y0, EAST + x1, NORTH + y1)


def polygon(x0: float, y0: float, x1: float, y1: float) -> shapely.Polygon:
    return shapely.box(EAST + x0, NORTH + y0, EAST + x1, NORTH + y1)


def line(*points: tuple[float, float]) -> shapely.LineString:
    return shapely.LineString([(EAST + x, NORTH + y) for x, y in points])


TOWN_LANDMARKS = (
    Landmark("Red Hall", "hall", polygon(20, 55, 40, 70), ("Town House",)),
    Landmark("Mercury", "school", polygon(80, 8, 98, 22)),
    Landmark("Mercury", "cafe", polygon(100, 60, 108, 68)),
    Landmark("Mill Road", "road", line((-20, 39), (60, 41), (140, 40))),
    Landmark("Level Lane", "road", line((4, 24), (50, 24))),
    Landmark("Snake Lane", "road", line(*((x, 50 + 3 * math.sin(x / 3)) for x in range(121)))),
    Landmark("Fountain", "fountain", shapely.Point(EAST + 61.3, NORTH + 20.7)),
    Landmark("Old Well", "well", shapely.Point(EAST + 60, NORTH + 20)),
)


def _cells(box: tuple[float, float, float, float], size: float) -> tuple[slice, slice]:
    """Rows and columns of a box in a north-up grid of the town with cells of `size` metres."""
    x0, y0, x1, y1 = box
    return (
        slice(round((HEIGHT - y1) / size), round((HEIGHT - y0) / size)),
        slice(round(x0 / size), round(x1 / size)),
    )


def town_photo() -> NDArray[np.uint8]:
    photo = np.full((round(HEIGHT / PIXEL), round(WIDTH / PIXEL), 3), GRASS, np.uint8)
    for box, color, _ in THINGS.values():
        photo[_cells(box, PIXEL)] = color
    return photo


def town_heights() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Surface and ground heights, in cells of CELL metres."""
    ground = np.full((round(HEIGHT / CELL), round(WIDTH / CELL)), LOW_GROUND, np.float32)
    ground[:, round(STEP_AT / CELL) :] = HIGH_GROUND
    surface = ground.copy()
    for box, _, height in THINGS.values():
        surface[_cells(box, CELL)] += np.float32(height)
    for grid in (surface, ground):
        grid[_cells(UNKNOWN_HEIGHTS, CELL)] = np.nan
    return surface, ground


def _town_points(writer: SceneWriter, photo: NDArray[np.uint8], surface: NDArray[np.float32]) -> None:
    """One point in the middle of every cell of known height, coloured as the photo."""
    rows, columns = np.nonzero(np.isfinite(surface))
    xs, ys = EAST + (columns + 0.5) * CELL, NORTH + HEIGHT - (rows + 0.5) * CELL
    step = round(CELL / PIXEL)
    xyz = np.stack([xs, ys, surface[rows, columns].astype(np.float64)], axis=1)
    writer.points(xyz, photo[::step, ::step][rows, columns], np.full(len(rows), 6, np.uint8))


def write_town(folder: Path, layers: Sequence[str]) -> Path:
    """Write the town with its photo and, of `heights`, `points` and `landmarks`, the layers asked for."""
    extent = place(0, 0, WIDTH, HEIGHT)
    photo, (surface, ground) = town_photo(), town_heights()
    with new_folder(folder, replace=False) as target:
        writer = SceneWriter(target, CRS.from_epsg(32631))
        rows, columns = photo.shape[:2]
        pixels = np.ascontiguousarray(photo.transpose(2, 0, 1))
        writer.photo((extent, columns, rows), [(0, pixels, np.full((rows, columns), 255, np.uint8))])
        if "heights" in layers:
            grid = (extent, surface.shape[1], surface.shape[0])
            writer.heights("dsm", grid, [(0, surface)])
            writer.heights("dtm", grid, [(0, ground)])
        if "points" in layers:
            _town_points(writer, photo, surface)
        if "landmarks" in layers:
            writer.landmarks(TOWN_LANDMARKS)
        writer.finish(
            scene_id=folder.name,
            revision=3,
            grid=(extent, columns, rows),
            vertical_datum="local",
            sources=(),
            attribution=("© OpenStreetMap contributors",),
            survey_date="2024-05-01",
            origin_z=50.0,
        )
    return folder


@pytest.fixture(scope="session")
def at() -> Callable[[float, float, float, float], WorldBox]:
    """World box from metres east and north of the town's south-west corner (west, south, east, north)."""
    return place


@pytest.fixture(scope="session")
def things() -> dict[str, WorldBox]:
    """What stands in the town, by name, without heights."""
    return {name: place(*box) for name, (box, _, _) in THINGS.items()}


@pytest.fixture(scope="session")
def colors() -> dict[str, tuple[int, int, int]]:
    """The colours of what stands in the town, by name."""
    return {name: color for name, (_, color, _) in THINGS.items()}


@pytest.fixture(scope="session")
def town_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The town with all its layers, on disk."""
    return write_town(tmp_path_factory.mktemp("scenes") / "town", ("heights", "points", "landmarks"))


@pytest.fixture(scope="session")
def town(town_folder: Path) -> Iterator[Scene]:
    """The town with all its layers."""
    with Scene(town_folder) as scene:
        yield scene


@pytest.fixture(scope="session")
def town_without_points(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The town with heights and landmarks."""
    with Scene(write_town(tmp_path_factory.mktemp("scenes") / "pointless", ("heights", "landmarks"))) as scene:
        yield scene


@pytest.fixture(scope="session")
def bare_town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The town's photo and nothing else."""
    with Scene(write_town(tmp_path_factory.mktemp("scenes") / "bare", ())) as scene:
        yield scene


# ---- the small synthetic city


@pytest.fixture(scope="session")
def small_city() -> City:
    """150 m wide, with everything a large one has."""
    return build_city(CityConfig(3, size_m=150.0, gsd_m=0.2, points_per_m2=2.0))


@pytest.fixture(scope="session")
def small_city_expressions(small_city: City) -> list[Expression]:
    """Sentences about the small city, and what they mean."""
    return make_expressions(small_city, 20, 1)


@pytest.fixture(scope="session")
def small_city_scene(
    small_city: City, small_city_expressions: list[Expression], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """The small city as a scene."""
    folder = tmp_path_factory.mktemp("scenes") / "small-city"
    write_city(folder, small_city, small_city_expressions, scene_id="small-city")
    with Scene(folder) as scene:
        yield scene
