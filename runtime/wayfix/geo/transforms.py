"""The affine mapping between a view's pixels, its integers 0 to 1000, and world metres."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wayfix.geo.boxes import UNIT_MAX, UnitBox, WorldBox

SNAP = 1e-6
"""World -> view rounds outwards, but a value this close to an integer (in units 0..1000) is that integer."""


@dataclass(frozen=True)
class ViewTransform:
    """Pixel -> world affine of one image, float64: x = a*col + b*row + c, y = d*col + e*row + f.

    Pixel (0, 0) is the outer corner of the upper left pixel, so the image spans [0, width] x [0, height]. A north-up
    image has b = d = 0, a > 0 and e < 0: rows run down, world y runs up.
    """

    width: int
    height: int
    a: float
    b: float
    c: float
    d: float
    e: float
    f: float

    @classmethod
    def north_up(cls, extent: WorldBox, width: int, height: int) -> ViewTransform:
        """The transform of a north-up image that shows exactly `extent`."""
        return cls(width, height, extent.width / width, 0.0, extent.min_x, 0.0, -extent.height / height, extent.max_y)

    def pixel_to_world(self, col: float, row: float) -> tuple[float, float]:
        """World (x, y) in metres of a pixel position."""
        return self.a * col + self.b * row + self.c, self.d * col + self.e * row + self.f

    def world_to_pixel(self, x: float, y: float) -> tuple[float, float]:
        """Pixel position (col, row) of a world point; may lie outside the image."""
        det = self.a * self.e - self.b * self.d
        dx, dy = x - self.c, y - self.f
        return (self.e * dx - self.b * dy) / det, (self.a * dy - self.d * dx) / det

    def unit_to_world(self, u: float, v: float) -> tuple[float, float]:
        """World (x, y) of a position in units 0..1000."""
        return self.pixel_to_world(u * self.width / UNIT_MAX, v * self.height / UNIT_MAX)

    def world_to_unit(self, x: float, y: float) -> tuple[float, float]:
        """Position in units 0..1000, unrounded and unclipped, of a world point."""
        col, row = self.world_to_pixel(x, y)
        return col * UNIT_MAX / self.width, row * UNIT_MAX / self.height

    @property
    def extent(self) -> WorldBox:
        """The axis-aligned world box around the whole image."""
        return self.box_to_world((0, 0, UNIT_MAX, UNIT_MAX))

    def box_to_world(self, box: UnitBox) -> WorldBox:
        """The axis-aligned world box around a box in units; exact where the view is north-up."""
        x0, y0, x1, y1 = box
        corners = [self.unit_to_world(u, v) for u, v in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))]
        xs, ys = [p[0] for p in corners], [p[1] for p in corners]
        return WorldBox(min(xs), min(ys), max(xs), max(ys))

    def box_to_unit(self, box: WorldBox) -> UnitBox | None:
        """The smallest integer box that covers the part of a world box inside the view, or None where none is.

        Rounded outwards after snapping within SNAP, so that unit box -> world -> unit box is the identity.
        """
        corners = [
            self.world_to_unit(x, y)
            for x, y in (
                (box.min_x, box.min_y),
                (box.max_x, box.min_y),
                (box.max_x, box.max_y),
                (box.min_x, box.max_y),
            )
        ]
        us, vs = [p[0] for p in corners], [p[1] for p in corners]
        x0, x1 = _around(min(us), max(us))
        y0, y1 = _around(min(vs), max(vs))
        return (x0, y0, x1, y1) if x0 < x1 and y0 < y1 else None


def _around(low: float, high: float) -> tuple[int, int]:
    """The whole units around a range, clipped to the view; a range without width on a whole unit is given one unit."""
    a, b = _floor(low), _ceil(high)
    if a == b:
        a, b = (a, b + 1) if a < UNIT_MAX else (a - 1, b)
    return _clip(a), _clip(b)


def _floor(value: float) -> int:
    nearest = round(value)
    return nearest if abs(value - nearest) <= SNAP else math.floor(value)


def _ceil(value: float) -> int:
    nearest = round(value)
    return nearest if abs(value - nearest) <= SNAP else math.ceil(value)


def _clip(value: int) -> int:
    return min(max(value, 0), UNIT_MAX)
