"""What a city is made of before it is drawn.

Positions are scene-local: metres east (x) and north (y) of the extent's lower-left corner. Angles are radians,
counter-clockwise from east. The street grid has its own frame (u, v), rotated by the scene's angle about its centre.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Rgb = tuple[int, int, int]
"""Red, green, blue, 0..255."""


@dataclass(frozen=True)
class Footprint:
    """An oriented rectangle; a vehicle's front is at the far end of its length axis."""

    x: float
    y: float
    length: float
    width: float
    angle: float

    def corners(self, margin: float = 0.0) -> NDArray[np.float64]:
        """(4, 2) local metres, counter-clockwise; `margin` metres are added on each side."""
        a, b = self.length / 2 + margin, self.width / 2 + margin
        return self.to_local(np.array([a, -a, -a, a]), np.array([b, b, -b, -b]))

    def to_local(self, u: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
        """(N, 2) local metres of points given along (u) and across (v, to the left) the length axis."""
        c, s = math.cos(self.angle), math.sin(self.angle)
        return np.stack([self.x + u * c - v * s, self.y + u * s + v * c], axis=-1)

    @property
    def heading_deg(self) -> float:
        """Of the length axis: grid, degrees clockwise from north, 0 <= heading < 360."""
        return (90.0 - math.degrees(self.angle)) % 360.0


@dataclass(frozen=True)
class Rect:
    """An axis-parallel rectangle in the street grid's frame, metres."""

    u0: float
    v0: float
    u1: float
    v1: float

    @property
    def du(self) -> float:
        """Extent along u."""
        return self.u1 - self.u0

    @property
    def dv(self) -> float:
        """Extent along v."""
        return self.v1 - self.v0

    @property
    def center(self) -> tuple[float, float]:
        """(u, v) of the middle."""
        return (self.u0 + self.u1) / 2, (self.v0 + self.v1) / 2

    def inset(self, margin: float) -> Rect:
        """The rectangle with `margin` metres taken off each side."""
        return Rect(self.u0 + margin, self.v0 + margin, self.u1 - margin, self.v1 - margin)


@dataclass(frozen=True)
class Grid:
    """The street grid's frame: rotated by `angle` about the middle of a square of `size` metres."""

    angle: float
    size: float

    def place(self, u: float, v: float, length: float, width: float, angle: float = 0.0) -> Footprint:
        """The local footprint of a rectangle centred at (u, v) whose length axis has `angle` in the grid's frame."""
        c, s = math.cos(self.angle), math.sin(self.angle)
        half = self.size / 2
        return Footprint(half + u * c - v * s, half + u * s + v * c, length, width, self.angle + angle)

    def place_rect(self, rect: Rect) -> Footprint:
        """The local footprint of a grid rectangle; its length axis runs along u."""
        return self.place(*rect.center, rect.du, rect.dv)

    @property
    def reach(self) -> float:
        """Half the side of the grid-frame square that covers the whole scene."""
        return self.size / 2 * (abs(math.cos(self.angle)) + abs(math.sin(self.angle)))


@dataclass(frozen=True)
class Road:
    """A straight street in the grid's frame; `along` is 'u' or 'v', `at` its other coordinate."""

    along: str
    at: float
    start: float
    end: float
    lanes: int
    parking: tuple[bool, bool]
    """Whether cars may park at the kerb of the negative and positive side."""
    pavement: float
    name: str = ""

    LANE_M = 3.2
    BAY_M = 2.3

    @property
    def width(self) -> float:
        """Kerb to kerb, metres."""
        return self.lanes * self.LANE_M + sum(self.parking) * self.BAY_M

    @property
    def shift(self) -> float:
        """Offset of the lanes' middle from the centre line: kerb parking on one side only pushes it over."""
        return (float(self.parking[0]) - float(self.parking[1])) * self.BAY_M / 2

    def band(self, grid: Grid, across0: float, across1: float, start: float, end: float) -> Footprint:
        """The footprint of a strip from `across0` to `across1` off the centre line and `start` to `end` along it."""
        mid, across = (start + end) / 2, self.at + (across0 + across1) / 2
        u, v = (mid, across) if self.along == "u" else (across, mid)
        return grid.place(u, v, end - start, across1 - across0, 0.0 if self.along == "u" else math.pi / 2)


@dataclass(frozen=True)
class RoofUnit:
    """A box on a flat roof, in its building's (u, v) axes; `height` is above the roof."""

    u: float
    v: float
    length: float
    width: float
    height: float


@dataclass(frozen=True)
class Building:
    """A building with a rectangular footprint; `height` reaches its highest point, `eave` the roof's edge."""

    footprint: Footprint
    category: str
    color: str
    roof_rgb: Rgb
    wall_rgb: Rgb
    roof: str
    eave: float
    height: float
    units: tuple[RoofUnit, ...] = ()
    block: int = 0
    name: str | None = None
    type: str = "building"
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Vehicle:
    """A vehicle; `state` is 'parked' or 'driving'."""

    footprint: Footprint
    category: str
    color: str
    rgb: Rgb
    height: float
    state: str


@dataclass(frozen=True)
class CarPark:
    """A paved area with bays; `lines` are the painted bay lines."""

    footprint: Footprint
    lines: tuple[Footprint, ...]
    block: int = 0
    name: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cover:
    """A piece of ground: a garden, a yard, a driveway, a park."""

    footprint: Footprint
    rgb: Rgb
    grain: int


@dataclass(frozen=True)
class Tree:
    """A tree: centre, crown radius and height above ground, metres."""

    x: float
    y: float
    radius: float
    height: float
    rgb: Rgb


@dataclass(frozen=True)
class Palette:
    """A scene's materials and light."""

    grass: Rgb
    asphalt: Rgb
    pavement: Rgb
    paving: Rgb
    foliage: Rgb
    sun_azimuth: float
    """Radians clockwise from north, towards the sun."""
    sun_elevation: float
    ambient: float
    tint: tuple[float, float, float]
    """Factors of red, green and blue: white balance and exposure."""
    saturation: float
    """1 keeps the paint's colours; less is how cameras and haze show them from the air."""
    haze: float


@dataclass
class Layout:
    """Everything of a city, ready to be drawn."""

    grid: Grid
    palette: Palette
    roads: list[Road] = field(default_factory=list)
    covers: list[Cover] = field(default_factory=list)
    buildings: list[Building] = field(default_factory=list)
    car_parks: list[CarPark] = field(default_factory=list)
    vehicles: list[Vehicle] = field(default_factory=list)
    trees: list[Tree] = field(default_factory=list)
