"""Vehicles: their sizes, and where they park and drive along streets."""

from __future__ import annotations

import math

import numpy as np

from wayfix.synth.colors import CAR_COLORS, VEHICLE_ODDS, draw_word, jittered
from wayfix.synth.plan import Footprint, Grid, Road, Vehicle
from wayfix.synth.streets import stretches

SIZES: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    "car": ((3.9, 4.8), (1.75, 1.9), (1.42, 1.6)),
    "van": ((5.1, 5.9), (2.0, 2.15), (2.0, 2.5)),
    "truck": ((7.4, 9.4), (2.45, 2.55), (3.0, 3.6)),
    "bus": ((10.6, 12.4), (2.5, 2.55), (3.0, 3.3)),
}
"""Least and greatest length, width and height of each category, metres."""


def make_vehicle(rng: np.random.Generator, place: Footprint, category: str, state: str) -> Vehicle:
    """A vehicle of this category, centred and headed as `place` says (its length and width are not used)."""
    length, width, height = (float(rng.uniform(*span)) for span in SIZES[category])
    color = draw_word(rng, VEHICLE_ODDS[category])
    footprint = Footprint(place.x, place.y, length, width, place.angle)
    return Vehicle(footprint, category, color, jittered(rng, CAR_COLORS[color], 7.0), height, state)


def kerb_vehicles(rng: np.random.Generator, grid: Grid, roads: list[Road], fill: float) -> list[Vehicle]:
    """Vehicles parked at the kerbs that allow it; `fill` is the share of taken places."""
    found: list[Vehicle] = []
    for road in roads:
        for side in (-1, 1):
            if not road.parking[0 if side < 0 else 1]:
                continue
            across = side * (road.width / 2 - road.BAY_M / 2 + 0.1)
            for start, end in stretches(road, roads, 9.0):
                found += _kerb_row(rng, grid, road, across, (start + 1.0, end - 1.0), fill)
    return found


def driving_vehicles(rng: np.random.Generator, grid: Grid, roads: list[Road], spacing: float) -> list[Vehicle]:
    """Vehicles in lanes, driving on the right; `spacing` is their mean distance in a lane, metres."""
    found: list[Vehicle] = []
    for road in roads:
        for lane in range(road.lanes):
            across = road.shift + (lane + 0.5 - road.lanes / 2) * road.LANE_M
            # Right of the way one drives: south when driving east (+u), east when driving north (+v).
            forward = (across < road.shift) == (road.along == "u")
            for start, end in stretches(road, roads, 7.0):
                at = start + float(rng.exponential(spacing)) + 6.0
                while at < end - 6.0:
                    category = draw_word(rng, {"car": 7, "van": 1.6, "truck": 1.1, "bus": 0.7})
                    jitter = float(rng.normal(0, 0.12))
                    found.append(_on_road(rng, grid, road, at, across + jitter, forward, category, "driving"))
                    at += 15.0 + float(rng.exponential(spacing))
    return found


def _kerb_row(
    rng: np.random.Generator, grid: Grid, road: Road, across: float, span: tuple[float, float], fill: float
) -> list[Vehicle]:
    found: list[Vehicle] = []
    at = span[0]
    while True:
        category = draw_word(rng, {"car": 8, "van": 1.5, "truck": 0.35})
        step = SIZES[category][0][1] + float(rng.uniform(0.5, 1.1))
        if at + step > span[1]:
            return found
        if rng.random() < fill:
            # Most drivers stop with the traffic, some face it.
            forward = ((across < 0) == (road.along == "u")) == (rng.random() < 0.85)
            jitter = float(rng.normal(0, 0.06))
            found.append(_on_road(rng, grid, road, at + step / 2, across + jitter, forward, category, "parked"))
        at += step


def _on_road(
    rng: np.random.Generator, grid: Grid, road: Road, at: float, across: float, forward: bool, category: str, state: str
) -> Vehicle:
    u, v = (at, road.at + across) if road.along == "u" else (road.at + across, at)
    angle = (0.0 if road.along == "u" else math.pi / 2) + (0.0 if forward else math.pi)
    return make_vehicle(rng, grid.place(u, v, 1.0, 1.0, angle + float(rng.normal(0, 0.012))), category, state)
