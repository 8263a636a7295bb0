"""What relation words mean on a north-up map, in metres; the synthetic city's ground truth and its readers agree on it.

Left, right, above and below are as on the map: west, east, north and south. Reasons are in docs/paper-choices.md.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from wayfix.geo.boxes import WorldBox

NEXT_TO_GAP_M = 4.0
"""Two objects are next to each other when the gap between their boxes is at most this."""

NEAR_GAP_M = 40.0
"""An object is near a landmark when the gap between them is at most this."""

ALONG_ROAD_M = 14.0
"""An object is on a road, or on one side of it, when its centre is at most this far from the centre line."""

DIRECTION_HALF_ANGLE_DEG = 45.0
"""'East of' is within this angle of due east, seen from the nearer box's centre."""

DIRECTIONS: dict[str, tuple[float, float]] = {
    "north": (0.0, 1.0),
    "south": (0.0, -1.0),
    "east": (1.0, 0.0),
    "west": (-1.0, 0.0),
}

SAME_DIRECTION = {"left": "west", "right": "east", "above": "north", "below": "south"}
"""Map words and the grid direction each stands for."""


def direction_angle(target: WorldBox, anchor: WorldBox, direction: str) -> float:
    """Degrees between the grid bearing from anchor to target (centres) and `direction`: 0 is straight that way."""
    dx = target.center[0] - anchor.center[0]
    dy = target.center[1] - anchor.center[1]
    length = math.hypot(dx, dy)
    if length == 0:
        return 180.0
    ux, uy = DIRECTIONS[direction]
    return math.degrees(math.acos(max(-1.0, min(1.0, (dx * ux + dy * uy) / length))))


def point_to_line(x: float, y: float, line: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Distance in metres from a point to a polyline, and the nearest point (x, y) on it."""
    best = (math.inf, x, y)
    for (ax, ay), (bx, by) in itertools.pairwise(line):
        dx, dy = bx - ax, by - ay
        length2 = dx * dx + dy * dy
        t = 0.0 if length2 == 0 else max(0.0, min(1.0, ((x - ax) * dx + (y - ay) * dy) / length2))
        px, py = ax + t * dx, ay + t * dy
        distance = math.hypot(x - px, y - py)
        if distance < best[0]:
            best = (distance, px, py)
    return best


def road_side(target: WorldBox, line: Sequence[tuple[float, float]]) -> tuple[str | None, float]:
    """The side (north, south, east or west) of a road's centre line a target lies on, and its distance in metres.

    The side is that of the offset from the nearest point of the line; None where the offset leans more than 25 degrees
    from it, and so has no plain name.
    """
    cx, cy = target.center
    distance, px, py = point_to_line(cx, cy, line)
    dx, dy = cx - px, cy - py
    if dx == 0 and dy == 0:
        return None, distance
    if abs(dx) > abs(dy):
        side, lean = ("east" if dx > 0 else "west"), math.degrees(math.atan2(abs(dy), abs(dx)))
    else:
        side, lean = ("north" if dy > 0 else "south"), math.degrees(math.atan2(abs(dx), abs(dy)))
    return (side if lean <= 25.0 else None), distance
