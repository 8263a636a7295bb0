"""The page's shapes: landmarks, footways, nodes and places as plain lists of whole centimetres."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import numpy as np
import shapely
from shapely.geometry.base import BaseGeometry

from wayfix.geo.boxes import WorldBox
from wayfix.scene.landmark import Landmark
from wayfix.scene.network import FootNode, FootWay, Place

_SHOWN_ELSEWHERE = {"id", "nodes", "geometry", "kind", "name", "x", "y"}


def landmark_features(landmarks: Iterable[Landmark], box: WorldBox) -> list[dict[str, Any]]:
    """Landmarks with their shapes; all coordinates in centimetres from the south-west corner of `box`."""
    return [
        {
            "name": mark.name,
            "type": mark.type,
            "aliases": list(mark.aliases),
            "at": _flat(_anchor(mark.geometry), box),
            **_shapes(mark.geometry, box),
        }
        for mark in landmarks
    ]


def way_features(ways: Iterable[FootWay], box: WorldBox) -> list[dict[str, Any]]:
    """Footways with their lines, in centimetres from the south-west corner of `box`, and all the map says of them."""
    return [
        {"name": way.name, "type": way.kind, "lines": [_flat(way.geometry, box)], "facts": _facts(way)} for way in ways
    ]


def point_features(things: Iterable[FootNode | Place], box: WorldBox) -> list[dict[str, Any]]:
    """Foot nodes or places, in centimetres from the south-west corner of `box`, and all the map says of them."""
    features = []
    for thing in things:
        at = [round((thing.x - box.min_x) * 100), round((thing.y - box.min_y) * 100)]
        name = thing.name if isinstance(thing, Place) else None
        features.append({"name": name, "type": thing.kind, "points": [at], "facts": _facts(thing)})
    return features


def _facts(thing: FootWay | FootNode | Place) -> list[str]:
    """`surface: asphalt` and so on: what is known and not shown by the shape, the kind or the name."""
    shown = ((field.name, getattr(thing, field.name)) for field in fields(thing) if field.name not in _SHOWN_ELSEWHERE)
    known = ((name, value) for name, value in shown if value is not None and value is not False)
    return [
        f"width: {value:g} m" if name == "width_m" else name.replace("_", " ") + ("" if value is True else f": {value}")
        for name, value in known
    ]


def _shapes(geometry: BaseGeometry, box: WorldBox) -> dict[str, list[list[int]]]:
    """Rings (outer ones against the clock, holes with it), lines and points of a geometry, each where there are any."""
    shapes: dict[str, list[list[int]]] = {"rings": [], "lines": [], "points": []}
    for part in _simple_parts(geometry):
        if part.geom_type == "Polygon":
            oriented = shapely.orient_polygons(part)
            shapes["rings"] += [_flat(ring, box) for ring in (oriented.exterior, *oriented.interiors)]
        elif part.geom_type == "Point":
            shapes["points"].append(_flat(part, box))
        else:
            shapes["lines"].append(_flat(part, box))
    return {kind: lists for kind, lists in shapes.items() if lists}


def _simple_parts(geometry: BaseGeometry) -> list[BaseGeometry]:
    """Polygons, lines and points, however deep the collections."""
    parts = shapely.get_parts(geometry).tolist()
    if len(parts) == 1 and parts[0].geom_type == geometry.geom_type:
        return [] if geometry.is_empty else parts
    return [simple for part in parts for simple in _simple_parts(part)]


def _anchor(geometry: BaseGeometry) -> BaseGeometry:
    """Where the name is written: in the middle of a line, inside everything else."""
    if geometry.geom_type == "LineString":
        return geometry.interpolate(0.5, normalized=True)
    return geometry.representative_point()


def _flat(geometry: BaseGeometry, box: WorldBox) -> list[int]:
    """x, y, x, y, ... in whole centimetres."""
    offsets = shapely.get_coordinates(geometry) - (box.min_x, box.min_y)
    return np.round(offsets * 100.0).astype(np.int64).ravel().tolist()
