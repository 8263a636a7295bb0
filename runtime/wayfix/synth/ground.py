"""Drawing what lies flat: covers, roads and what is painted on them."""

from __future__ import annotations

import numpy as np

from wayfix.synth.canvas import Canvas
from wayfix.synth.plan import Layout, Rgb, Road
from wayfix.synth.streets import crossings, stretches

PAINT: Rgb = (216, 216, 210)
KERB: Rgb = (190, 188, 182)


def draw_ground(canvas: Canvas, layout: Layout, rng: np.random.Generator) -> None:
    """Pavements, carriageways, lots, car parks and lane markings."""
    palette, grid, roads = layout.palette, layout.grid, layout.roads
    for road in roads:
        half = road.width / 2 + road.pavement
        canvas.fill(road.band(grid, -half, half, road.start, road.end).corners(), palette.pavement, 10)
    for cover in layout.covers:
        canvas.fill(cover.footprint.corners(), cover.rgb, cover.grain)
    for park in layout.car_parks:
        for line in park.lines:
            canvas.fill(line.corners(), PAINT)
    for road in roads:
        half = road.width / 2
        canvas.fill(road.band(grid, -half - 0.15, half + 0.15, road.start, road.end).corners(), KERB, 8)
    # A side street starts behind the through road's pavement, so its carriageway reaches over it.
    for road in roads:
        half = road.width / 2
        canvas.fill(road.band(grid, -half, half, road.start - 3.6, road.end + 3.6).corners(), palette.asphalt, 8)
    for road in roads:
        _markings(canvas, layout, road)
        if rng.random() < 0.75:
            _zebras(canvas, layout, road)


def _markings(canvas: Canvas, layout: Layout, road: Road) -> None:
    """Dashes between lanes, a double line between directions of four lanes, and edges of kerb parking."""
    for start, end in stretches(road, layout.roads, 5.0):
        for border in range(1, road.lanes):
            across = road.shift + (border - road.lanes / 2) * road.LANE_M
            if road.lanes == 4 and border == 2:
                for side in (-0.16, 0.16):
                    _line(canvas, layout, road, across + side, start, end)
                continue
            for at in np.arange(start, end - 3.0, 6.0):
                _line(canvas, layout, road, across, float(at), float(at) + 3.0)
        for side, parking in zip((-1, 1), road.parking, strict=True):
            if parking:
                _line(canvas, layout, road, side * (road.width / 2 - road.BAY_M), start, end)


def _line(canvas: Canvas, layout: Layout, road: Road, across: float, start: float, end: float) -> None:
    canvas.fill(road.band(layout.grid, across - 0.06, across + 0.06, start, end).corners(), PAINT)


def _zebras(canvas: Canvas, layout: Layout, road: Road) -> None:
    """Striped crossings just before and after each meeting with another road."""
    for start, end in crossings(road, layout.roads):
        for first, last in ((start - 4.4, start - 1.4), (end + 1.4, end + 4.4)):
            if first < road.start or last > road.end:
                continue
            for across in np.arange(-road.width / 2 + 0.5, road.width / 2 - 0.5, 1.0):
                canvas.fill(road.band(layout.grid, float(across), float(across) + 0.5, first, last).corners(), PAINT)
