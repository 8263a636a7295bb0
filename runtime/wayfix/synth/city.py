"""A city from a seed: what stands where, its image, heights and points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wayfix.errors import InvalidOption
from wayfix.geo.boxes import WorldBox
from wayfix.scene.landmark import Landmark
from wayfix.synth.bodywork import draw_vehicle
from wayfix.synth.canvas import Canvas
from wayfix.synth.catalogue import CityObject, list_landmarks, list_objects
from wayfix.synth.ground import draw_ground
from wayfix.synth.heights import HEIGHT_GSD_M, cell_means, make_terrain, survey_surface
from wayfix.synth.layout import make_layout
from wayfix.synth.light import lit_image
from wayfix.synth.names import SYLLABLES
from wayfix.synth.plan import Layout
from wayfix.synth.points import sample_points
from wayfix.synth.solids import draw_building, draw_trees

MIN_BUILDINGS, MIN_CARS = 25, 60
"""Every 300 m scene has at least these; smaller and larger ones in proportion to their area."""

_ATTEMPTS = 30


@dataclass(frozen=True)
class CityConfig:
    """What to build; equal configs give equal cities."""

    seed: int
    size_m: float = 300.0
    """Side of the square scene."""
    gsd_m: float = 0.1
    """Ground sampling distance of the image."""
    split: str = "train"
    """train, val or test: names are drawn from disjoint vocabularies, and the same seed gives another city."""
    points_per_m2: float = 12.0


@dataclass(frozen=True)
class City:
    """A city with its ground truth. World coordinates are metres of a UTM zone; grids have row 0 in the north."""

    config: CityConfig
    objects: tuple[CityObject, ...]
    landmarks: tuple[Landmark, ...]
    bev: NDArray[np.uint8]
    """(H, W, 3) RGB at config.gsd_m."""
    dsm: NDArray[np.float32]
    """(h, w) heights of the surface, metres, at heights.HEIGHT_GSD_M."""
    dtm: NDArray[np.float32]
    """(h, w) heights of bare ground, metres, same grid."""
    points_xyz: NDArray[np.float64]
    """(N, 3) world metres."""
    points_rgb: NDArray[np.uint8]
    """(N, 3)."""
    points_class: NDArray[np.uint8]
    """(N,) ASPRS: 2 ground, 5 vegetation, 6 building, 64 car."""
    extent: WorldBox
    visible: NDArray[np.float64]
    """(buildings + cars,) share of each object's pixels that trees leave visible from above, by object id."""


def build_city(config: CityConfig) -> City:
    """Build the city of a config; raises InvalidOption where the config makes no sense."""
    _check(config)
    layout = _layout(config)
    rng = _rng(config, 1000)
    origin = (500_000.0 + 10.0 * int(rng.integers(0, 2000)), 5_700_000.0 + 10.0 * int(rng.integers(0, 2000)))
    terrain = make_terrain(rng, config.size_m, config.gsd_m)
    canvas = Canvas.blank(terrain, config.gsd_m, layout.palette.grass, 26)
    shown = _draw(canvas, layout, rng)
    objects = list_objects(layout, canvas, *origin)
    bev = lit_image(canvas, layout.palette, rng)
    xyz, rgb, classes = sample_points(rng, canvas, bev, layout.buildings, layout.trees, config.points_per_m2)
    xyz[:, :2] += origin
    low, high = float(terrain.min()), float(canvas.z.max())
    extent = WorldBox(*origin, origin[0] + config.size_m, origin[1] + config.size_m, low, high)
    return City(
        config, objects, list_landmarks(layout, objects), bev, survey_surface(rng, canvas.z, config.size_m),
        cell_means(terrain, config.size_m), xyz, rgb, classes, extent, shown,
    )  # fmt: skip


def _check(config: CityConfig) -> None:
    if config.split not in SYLLABLES:
        raise InvalidOption(f"split is one of {', '.join(SYLLABLES)}; got {config.split!r}")
    if not 100.0 <= config.size_m <= 1000.0:
        raise InvalidOption(f"a city is 100 to 1000 m wide; got {config.size_m}")
    if not 0.05 <= config.gsd_m <= 0.5:
        raise InvalidOption(f"a city is drawn at 0.05 to 0.5 m; got {config.gsd_m}")
    for cell in (config.gsd_m, HEIGHT_GSD_M):
        if abs(config.size_m / cell - round(config.size_m / cell)) > 1e-6:
            raise InvalidOption(f"size_m is a whole number of gsd_m and of {HEIGHT_GSD_M} m; got {config.size_m}")
    if config.points_per_m2 < 0 or config.seed < 0:
        raise InvalidOption("seed and points_per_m2 are not negative")


def _rng(config: CityConfig, purpose: int) -> np.random.Generator:
    return np.random.default_rng([config.seed, list(SYLLABLES).index(config.split), purpose])


def _layout(config: CityConfig) -> Layout:
    """The first layout of the seed's sequence that holds enough."""
    share = (config.size_m / 300.0) ** 2
    for attempt in range(_ATTEMPTS):
        layout = make_layout(_rng(config, attempt), config.size_m, config.split)
        if len(layout.buildings) >= MIN_BUILDINGS * share and len(layout.vehicles) >= MIN_CARS * share:
            return layout
    raise InvalidOption(f"seed {config.seed} gives no city of {config.size_m} m with enough in it; use another seed")


def _draw(canvas: Canvas, layout: Layout, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw all; drops the trees that would hide something and returns what share of each object stays visible."""
    draw_ground(canvas, layout, rng)
    for number, building in enumerate(layout.buildings):
        draw_building(canvas, building, number, rng)
    for number, vehicle in enumerate(layout.vehicles, len(layout.buildings)):
        draw_vehicle(canvas, vehicle, number)
    count = len(layout.buildings) + len(layout.vehicles)
    before = np.bincount(canvas.ids[canvas.ids >= 0], minlength=count)
    layout.trees = draw_trees(canvas, layout.trees, count, rng)
    after = np.bincount(canvas.ids[canvas.ids >= 0], minlength=count)
    return after / np.maximum(before, 1)
