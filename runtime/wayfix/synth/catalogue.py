"""From what was laid out to what is told: objects with world boxes, and landmarks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from shapely.geometry import LineString, Polygon, box

from wayfix.geo.boxes import WorldBox
from wayfix.scene.landmark import Landmark
from wayfix.synth.canvas import Canvas
from wayfix.synth.plan import Building, CarPark, Footprint, Layout, Road, Vehicle
from wayfix.synth.solids import base_height

MIN_ROAD_M = 20.0
"""A road with less than this inside the scene is drawn but not told."""

Corners = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class CityObject:
    """One thing of a city; coordinates are the city's CRS, metres."""

    id: int
    kind: str
    """building, car, car_park or road."""
    category: str
    """car, van, truck, bus; house, block, tower, hall; car_park; road."""
    color: str
    """Of a car's body or a building's roof; '' for car parks and roads."""
    name: str | None
    box: WorldBox
    """Axis-aligned hull, with heights."""
    corners: Corners
    """The oriented footprint's four corners, counter-clockwise; of a road, the points of its centre line."""
    heading_deg: float
    """Of the long axis, a vehicle's front first: grid, clockwise from north."""
    height_m: float
    roof: str
    """flat, gable or hip for buildings, else ''."""
    state: str
    """parked or driving for cars, else ''."""


def list_objects(layout: Layout, canvas: Canvas, x0: float, y0: float) -> tuple[CityObject, ...]:
    """All objects, ids in order: buildings, cars, car parks, roads. (x0, y0) is the lower-left corner, metres."""
    makers = _Catalogue(canvas, x0, y0)
    found: list[CityObject] = []
    for building in layout.buildings:
        found.append(makers.building(len(found), building))
    for vehicle in layout.vehicles:
        found.append(makers.vehicle(len(found), vehicle))
    for park in layout.car_parks:
        found.append(makers.car_park(len(found), park))
    for road in layout.roads:
        told = makers.road(len(found), road, layout)
        if told is not None:
            found.append(told)
    return tuple(found)


def list_landmarks(layout: Layout, objects: tuple[CityObject, ...]) -> tuple[Landmark, ...]:
    """Every named object as a landmark, in the objects' order."""
    types = {b.name: (b.type, b.aliases) for b in layout.buildings if b.name}
    found = []
    for item in objects:
        if item.name is None:
            continue
        if item.kind == "road":
            found.append(Landmark(item.name, "road", LineString(item.corners)))
        elif item.kind == "car_park":
            found.append(Landmark(item.name, "parking", Polygon(item.corners)))
        else:
            kind, aliases = types[item.name]
            found.append(Landmark(item.name, kind, Polygon(item.corners), aliases))
    return tuple(found)


class _Catalogue:
    """Turns plans into objects of one city."""

    def __init__(self, canvas: Canvas, x0: float, y0: float) -> None:
        self._canvas = canvas
        self._origin = np.array([x0, y0])

    def building(self, number: int, building: Building) -> CityObject:
        corners, hull = self._hull(building.footprint, building.height)
        heading = building.footprint.heading_deg % 180.0
        return CityObject(
            number, "building", building.category, building.color, building.name, hull, corners, heading,
            building.height, building.roof, "",
        )  # fmt: skip

    def vehicle(self, number: int, vehicle: Vehicle) -> CityObject:
        corners, hull = self._hull(vehicle.footprint, vehicle.height)
        return CityObject(
            number, "car", vehicle.category, vehicle.color, None, hull, corners, vehicle.footprint.heading_deg,
            vehicle.height, "", vehicle.state,
        )  # fmt: skip

    def car_park(self, number: int, park: CarPark) -> CityObject:
        corners, hull = self._hull(park.footprint, 0.0)
        heading = park.footprint.heading_deg % 180.0
        return CityObject(number, "car_park", "car_park", "", park.name, hull, corners, heading, 0.0, "", "")

    def road(self, number: int, road: Road, layout: Layout) -> CityObject | None:
        """A road's part inside the scene, or None where that is too short."""
        size = layout.grid.size
        band = road.band(layout.grid, 0.0, 0.0, road.start, road.end)
        ends = band.to_local(np.array([-band.length / 2, band.length / 2]), np.zeros(2))
        line = LineString(ends).intersection(box(0, 0, size, size))
        if line.is_empty or line.length < MIN_ROAD_M:
            return None
        points = np.array(line.coords)
        width = line.buffer(road.width / 2, cap_style="flat").bounds
        ground = self._canvas.terrain[self._canvas.cell(points[:, 0], points[:, 1])]
        x0, y0 = self._origin
        hull = WorldBox(
            float(width[0] + x0), float(width[1] + y0), float(width[2] + x0), float(width[3] + y0),
            float(ground.min()), float(ground.max()),
        )  # fmt: skip
        return CityObject(
            number, "road", "road", "", road.name, hull, self._world(points), band.heading_deg % 180.0, 0.0, "", ""
        )

    def _hull(self, footprint: Footprint, height: float) -> tuple[Corners, WorldBox]:
        corners = footprint.corners()
        low, high = corners.min(axis=0) + self._origin, corners.max(axis=0) + self._origin
        base = base_height(self._canvas, footprint)
        hull = WorldBox(float(low[0]), float(low[1]), float(high[0]), float(high[1]), base, base + height)
        return self._world(corners), hull

    def _world(self, points: NDArray[np.float64]) -> Corners:
        return tuple((float(x), float(y)) for x, y in points + self._origin)
