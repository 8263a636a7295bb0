"""Polygons from closed ways and from the members of multipolygons, repaired where they cross themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import shapely
from numpy.typing import NDArray
from shapely.geometry.base import BaseGeometry

Outcome = Literal["whole", "repaired areas", "cut areas", "unusable shapes"]
"""`whole`, or the kind of remark to make."""

Points = NDArray[np.float64]
"""Vertices (n, 2): x, y in metres, scene CRS; NaN where the file does not hold a node."""


def polygon(points: Points) -> tuple[BaseGeometry | None, Outcome]:
    """The polygon inside a closed line, or None with the reason."""
    if np.isnan(points).any():
        return None, "cut areas"
    if len(points) < 4:
        return None, "unusable shapes"
    return _mended(shapely.Polygon(points))


def multipolygon(members: Sequence[Points]) -> tuple[BaseGeometry | None, Outcome]:
    """The area that the members' rings enclose an odd number of times, or None with the reason.

    A hole, and an island in the hole, come out right even where the members' roles are wrong or missing.
    """
    if any(np.isnan(points).any() for points in members):
        return None, "cut areas"
    lines = [shapely.LineString(points) for points in members if len(points) > 1]
    closed = shapely.get_parts(shapely.line_merge(shapely.MultiLineString(lines))) if lines else []
    rings = [line for line in closed if line.is_closed]
    if len(rings) < len(closed):
        # Rings that touch each other at a node are not told apart by merging lines.
        rings = [face.exterior for face in shapely.get_parts(shapely.polygonize(lines))]
        if not rings:
            return None, "cut areas"
    outcome: Outcome = "whole"
    area: BaseGeometry = shapely.Polygon()
    for ring in rings:
        part, said = _mended(shapely.Polygon(ring.coords)) if len(ring.coords) >= 4 else (None, "unusable shapes")
        outcome = said if said != "whole" else outcome
        if part is not None:
            area = shapely.symmetric_difference(area, part)
    area = _polygons(area)
    return (None, "unusable shapes") if area.is_empty else (area, outcome)


def known_runs(points: Points) -> Iterator[slice]:
    """The stretches of at least two vertices in a row whose place is known."""
    known = np.concatenate(([False], ~np.isnan(points[:, 0]), [False]))
    turns = np.flatnonzero(known[1:] != known[:-1])
    for begin, end in zip(turns[::2].tolist(), turns[1::2].tolist(), strict=True):
        if end - begin > 1:
            yield slice(begin, end)


def known_lines(members: Sequence[Points]) -> BaseGeometry | None:
    """What is known of the lines, as one LineString or a MultiLineString; None where no two vertices in a row are."""
    lines = [shapely.LineString(points[run]) for points in members for run in known_runs(points)]
    if len(lines) > 1:
        return shapely.line_merge(shapely.MultiLineString(lines))
    return lines[0] if lines else None


def _mended(area: BaseGeometry) -> tuple[BaseGeometry | None, Outcome]:
    if area.is_valid:
        return (area, "whole") if area.area > 0 else (None, "unusable shapes")
    mended = _polygons(shapely.make_valid(area))
    return (None, "unusable shapes") if mended.is_empty else (mended, "repaired areas")


def _polygons(shape: BaseGeometry) -> BaseGeometry:
    """The shape without the lines and points that mending and overlaying may leave."""
    parts = [part for part in shapely.get_parts(shape) if part.geom_type == "Polygon" and part.area > 0]
    nested = [part for part in shapely.get_parts(shape) if part.geom_type == "MultiPolygon"]
    parts += [part for group in nested for part in group.geoms]
    return parts[0] if len(parts) == 1 else shapely.MultiPolygon(parts)
