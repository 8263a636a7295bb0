"""Boxes in the two frames that matter: a view's integers 0 to 1000, and the world in metres."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from wayfix.errors import InvalidBox

UNIT_MAX = 1000
"""Both ends of a view are included: 0 is its left or top edge, 1000 its right or bottom one (Qwen3-VL's convention)."""

UnitBox = tuple[int, int, int, int]
"""x_min, y_min, x_max, y_max as integers 0..1000; x runs right, y runs down."""


@dataclass(frozen=True)
class WorldBox:
    """Axis-aligned box in a scene's CRS, metres, float64; `min_z`/`max_z` are None where heights are not known."""

    min_x: float
    min_y: float
    max_x: float
    max_y: float
    min_z: float | None = None
    max_z: float | None = None

    @property
    def center(self) -> tuple[float, float]:
        """Ground-plane centre (x, y)."""
        return (self.min_x + self.max_x) / 2, (self.min_y + self.max_y) / 2

    @property
    def width(self) -> float:
        """Extent along grid x (east), metres."""
        return self.max_x - self.min_x

    @property
    def height(self) -> float:
        """Extent along grid y (north), metres; the vertical extent is max_z - min_z."""
        return self.max_y - self.min_y

    @property
    def area(self) -> float:
        """Ground-plane area in square metres."""
        return self.width * self.height

    def grown(self, margin: float) -> WorldBox:
        """The box with `margin` metres added on each of its four sides; heights kept."""
        return WorldBox(
            self.min_x - margin, self.min_y - margin, self.max_x + margin, self.max_y + margin, self.min_z, self.max_z
        )

    def clipped(self, bounds: WorldBox) -> WorldBox | None:
        """The part inside `bounds` in the ground plane, or None where they share no area."""
        x0, y0 = max(self.min_x, bounds.min_x), max(self.min_y, bounds.min_y)
        x1, y1 = min(self.max_x, bounds.max_x), min(self.max_y, bounds.max_y)
        return WorldBox(x0, y0, x1, y1, self.min_z, self.max_z) if x0 < x1 and y0 < y1 else None

    def contains(self, x: float, y: float) -> bool:
        """Whether a ground point lies inside or on the edge."""
        return self.min_x <= x <= self.max_x and self.min_y <= y <= self.max_y


def parse_unit_box(value: object) -> UnitBox:
    """Four integers 0..1000 with x_min < x_max and y_min < y_max, or InvalidBox saying which rule was broken."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)) or len(value) != 4:
        raise InvalidBox(f"a box is [x_min, y_min, x_max, y_max], four integers 0 to {UNIT_MAX}; got {_short(value)}")
    numbers: list[int] = []
    for v in value:
        whole = (isinstance(v, int) and not isinstance(v, bool)) or (isinstance(v, float) and v.is_integer())
        if not whole:
            raise InvalidBox(f"box coordinates are integers 0 to {UNIT_MAX}; got {_short(v)} in {_short(value)}")
        numbers.append(int(v))
    x0, y0, x1, y1 = numbers
    if min(numbers) < 0 or max(numbers) > UNIT_MAX:
        raise InvalidBox(f"box coordinates lie within 0 to {UNIT_MAX} of their view; got {_short(numbers)}")
    if x0 >= x1 or y0 >= y1:
        raise InvalidBox(f"a box needs x_min < x_max and y_min < y_max; got {numbers}")
    return x0, y0, x1, y1


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        text = f"a {type(value).__name__} with very large numbers"
    return text if len(text) <= 80 else text[:77] + "..."


def iou_bev(a: WorldBox, b: WorldBox) -> float:
    """Intersection over union in the ground plane, 0..1."""
    inter = _overlap(a.min_x, a.max_x, b.min_x, b.max_x) * _overlap(a.min_y, a.max_y, b.min_y, b.max_y)
    union = a.area + b.area - inter
    return inter / union if union > 0 else 0.0


def iou_3d(a: WorldBox, b: WorldBox) -> float | None:
    """Intersection over union of volumes, 0..1; None where either box lacks heights."""
    if a.min_z is None or a.max_z is None or b.min_z is None or b.max_z is None:
        return None
    inter = (
        _overlap(a.min_x, a.max_x, b.min_x, b.max_x)
        * _overlap(a.min_y, a.max_y, b.min_y, b.max_y)
        * _overlap(a.min_z, a.max_z, b.min_z, b.max_z)
    )
    union = a.area * (a.max_z - a.min_z) + b.area * (b.max_z - b.min_z) - inter
    return inter / union if union > 0 else 0.0


def hull(boxes: Sequence[WorldBox]) -> WorldBox:
    """The smallest ground-plane box around one or more boxes; without heights."""
    return WorldBox(
        min(b.min_x for b in boxes),
        min(b.min_y for b in boxes),
        max(b.max_x for b in boxes),
        max(b.max_y for b in boxes),
    )


def gap(a: WorldBox, b: WorldBox) -> float:
    """Shortest ground-plane distance between two boxes in metres; 0 where they touch or overlap."""
    dx = max(0.0, a.min_x - b.max_x, b.min_x - a.max_x)
    dy = max(0.0, a.min_y - b.max_y, b.min_y - a.max_y)
    return math.hypot(dx, dy)


def center_distance(a: WorldBox, b: WorldBox) -> float:
    """Distance between centres in the ground plane, metres: d in equation 2 of Urbex."""
    (ax, ay), (bx, by) = a.center, b.center
    return math.hypot(ax - bx, ay - by)


def _overlap(a0: float, a1: float, b0: float, b1: float) -> float:
    return max(0.0, min(a1, b1) - max(a0, b0))
