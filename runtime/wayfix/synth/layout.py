"""A whole city's plan from a seed: palette, streets, lots, vehicles, names."""

from __future__ import annotations

import math
from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from wayfix.synth.colors import draw_word, jittered
from wayfix.synth.greenery import scatter_trees
from wayfix.synth.lots import LotPlan, fill_block
from wayfix.synth.names import Namer
from wayfix.synth.plan import Building, CarPark, Footprint, Grid, Layout, Palette, Rect, Vehicle
from wayfix.synth.streets import make_streets
from wayfix.synth.vehicles import driving_vehicles, kerb_vehicles

EDGE_M = 1.0
"""Buildings and vehicles keep this far from the scene's edge."""


def make_layout(rng: np.random.Generator, size: float, split: str) -> Layout:
    """The plan of a city of `size` by `size` metres, names from the split's vocabulary."""
    angle = (
        float(rng.uniform(-4, 4))
        if rng.random() < 0.5
        else float(rng.uniform(4, 20)) * (-1 if rng.random() < 0.5 else 1)
    )
    grid = Grid(math.radians(angle), size)
    layout = Layout(grid, _palette(rng))
    namer = Namer(split, rng)
    layout.roads, blocks = make_streets(rng, grid.reach, float(rng.uniform(88, 132)), namer)
    parts = _fill_blocks(rng, layout, blocks)
    space = _Space(size)
    layout.covers = [cover for part in parts for cover in part.covers]
    car_parks = [park for part in parts for park in part.car_parks if _inside(park.footprint, size)]
    buildings = [b for part in parts for b in part.buildings if space.take(b.footprint, 0.2)]
    layout.buildings = _named_buildings(rng, namer, buildings)
    layout.car_parks = _named_car_parks(rng, namer, car_parks, layout.buildings)
    layout.vehicles = _vehicles(rng, layout, parts, space)
    greens = [green for part in parts for green in part.greens]
    layout.trees = scatter_trees(rng, layout, greens)
    return layout


class _Space:
    """What ground is taken, on a grid of 0.2 m."""

    CELL_M = 0.2

    def __init__(self, size: float) -> None:
        self._size = size
        cells = math.ceil(size / self.CELL_M)
        self._taken: NDArray[np.uint8] = np.zeros((cells, cells), np.uint8)

    def take(self, footprint: Footprint, margin: float) -> bool:
        """Take a footprint's ground; False where it is not free with `margin` metres around it, or leaves the scene."""
        corners = footprint.corners()
        if corners.min() < EDGE_M or corners.max() > self._size - EDGE_M:
            return False
        wide = footprint.corners(margin) / self.CELL_M
        low = np.maximum(np.floor(wide.min(axis=0)).astype(int), 0)
        high = np.minimum(np.ceil(wide.max(axis=0)).astype(int) + 1, len(self._taken))
        mask = np.zeros((high[1] - low[1], high[0] - low[0]), np.uint8)
        cv2.fillConvexPoly(mask, np.round(wide - low).astype(np.int32), 1)
        window = self._taken[low[1] : high[1], low[0] : high[0]]
        if (window & mask).any():
            return False
        window |= mask
        return True


def _inside(footprint: Footprint, size: float) -> bool:
    corners = footprint.corners()
    return bool(corners.min() >= 0 and corners.max() <= size)


def _palette(rng: np.random.Generator) -> Palette:
    grass = ((104, 126, 74), (128, 128, 92), (142, 134, 104), (88, 116, 72), (116, 134, 96))
    asphalt = ((88, 89, 93), (104, 103, 104), (76, 78, 84), (112, 108, 104))
    tints = ((1.0, 1.0, 1.0), (1.05, 1.0, 0.93), (0.95, 1.0, 1.05), (1.02, 1.01, 0.97))
    tint = tints[int(rng.integers(len(tints)))]
    exposure = float(rng.uniform(0.82, 1.12))
    return Palette(
        grass=jittered(rng, grass[int(rng.integers(len(grass)))], 6.0),
        asphalt=jittered(rng, asphalt[int(rng.integers(len(asphalt)))], 5.0),
        pavement=jittered(rng, (166, 163, 156), 8.0),
        paving=jittered(rng, ((150, 146, 138), (136, 134, 132), (162, 146, 128))[int(rng.integers(3))], 6.0),
        foliage=((58, 86, 44), (70, 92, 52), (48, 78, 46), (84, 92, 50))[int(rng.integers(4))],
        sun_azimuth=math.radians(float(rng.uniform(105, 255))),
        sun_elevation=math.radians(float(rng.uniform(27, 58))),
        ambient=float(rng.uniform(0.42, 0.56)),
        tint=(tint[0] * exposure, tint[1] * exposure, tint[2] * exposure),
        saturation=float(rng.uniform(0.5, 0.95)),
        haze=float(rng.uniform(0.0, 0.07)),
    )


def _fill_blocks(rng: np.random.Generator, layout: Layout, blocks: list[Rect]) -> list[LotPlan]:
    dense = float(rng.uniform(0.7, 1.3))
    odds = {"residential": 4.0, "urban": 3.2 * dense, "commercial": 1.7 * dense, "park": 0.45}
    occupancy, scale = float(rng.uniform(0.4, 0.8)), float(rng.uniform(0.88, 1.25))
    return [
        fill_block(rng, layout.grid, layout.palette, block, number, draw_word(rng, odds), occupancy, scale)
        for number, block in enumerate(blocks)
        if min(block.du, block.dv) > 10.0
    ]


def _vehicles(rng: np.random.Generator, layout: Layout, parts: list[LotPlan], space: _Space) -> list[Vehicle]:
    wanted = [vehicle for part in parts for vehicle in part.vehicles]
    wanted += kerb_vehicles(rng, layout.grid, layout.roads, float(rng.uniform(0.3, 0.75)))
    wanted += driving_vehicles(rng, layout.grid, layout.roads, float(rng.uniform(20, 60)))
    return [vehicle for vehicle in wanted if space.take(vehicle.footprint, 0.12)]


def _named_buildings(rng: np.random.Generator, namer: Namer, buildings: list[Building]) -> list[Building]:
    share = {"house": 0.38, "block": 0.68, "tower": 0.85, "hall": 0.8}
    named = []
    for building in buildings:
        if rng.random() < share[building.category]:
            name, kind, aliases = namer.building(building.category)
            building = replace(building, name=name, type=kind, aliases=aliases)
        named.append(building)
    return named


def _named_car_parks(
    rng: np.random.Generator, namer: Namer, car_parks: list[CarPark], buildings: list[Building]
) -> list[CarPark]:
    """Four in five get a name, half of these that of a building of the same block."""
    named = []
    for park in car_parks:
        owners = [b for b in buildings if b.block == park.block and b.name]
        name = None
        if owners and rng.random() < 0.5:
            nearest = min(
                owners, key=lambda b: math.hypot(b.footprint.x - park.footprint.x, b.footprint.y - park.footprint.y)
            )
            name = namer.car_park_of(nearest.name or "")
        if name is None and rng.random() < 0.7:
            name = namer.car_park()
        named.append(replace(park, name=name))
    return named
