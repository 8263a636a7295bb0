"""Landmark files (GeoJSON, GeoPackage, Shapefile): names, aliases, types and geometries in the scene's CRS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyogrio.errors
import pyogrio.raw
import shapely
from pyproj import CRS

from wayfix.errors import InvalidLandmarks, MissingCrs, NoOverlap, UnreadableSource
from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import WGS84, conversion, parse_crs
from wayfix.scene.landmark import Landmark

MAX_NAME_LENGTH = 1000
SAME_PLACE_M = 10_000.0
"""Swapped coordinates that fall this near to the scene were swapped by mistake."""

_ALIAS_FIELDS = ("aliases", "alt_name")
_TYPE_FIELDS = ("type", "kind", "class")


@dataclass(frozen=True)
class LandmarkSource:
    """The landmarks of one file that lie in the scene."""

    path: Path
    crs: CRS
    accuracy_m: float | None
    landmarks: tuple[Landmark, ...]
    unnamed: int
    """Features left out because they have no name."""
    outside: int
    """Features left out because they do not touch the scene."""


def read_landmark_file(path: Path, scene_crs: CRS, extent: WorldBox) -> LandmarkSource:
    """Read, convert and check a landmark file. A feature needs `name`; `type` and `aliases` are optional.

    `aliases` is a list, or text separated by semicolons. Raises UnreadableSource, MissingCrs, InvalidLandmarks, or
    NoOverlap (with a hint where latitude and longitude look swapped).
    """
    meta, geometry, columns = _read(path)
    if meta["crs"] is None:
        raise MissingCrs(f"{path.name} does not say its CRS; save it as GeoJSON (WGS84) or GeoPackage")
    crs = parse_crs(meta["crs"])
    if "name" not in columns:
        raise InvalidLandmarks(f"{path.name} has no property `name`; it has: {', '.join(columns) or 'none'}")
    to_scene = conversion(crs, scene_crs)
    shapes = shapely.force_2d(shapely.from_wkb(geometry))
    bounds = shapely.box(extent.min_x, extent.min_y, extent.max_x, extent.max_y)

    landmarks, unnamed, outside = [], 0, 0
    for index, shape in enumerate(shapes):
        name = _text(columns["name"][index])
        if not name:
            unnamed += 1
            continue
        _check(path, index, name, shape)
        placed = shapely.transform(shape, lambda p: np.column_stack(to_scene(p[:, 0], p[:, 1])))
        if not shapely.intersects(placed, bounds):
            outside += 1
            continue
        landmarks.append(Landmark(name, _type(columns, index), placed, _aliases(columns, index, name)))
    if not landmarks and not outside:
        raise InvalidLandmarks(f"{path.name} has {unnamed} features and none of them has a name")
    if not landmarks:
        raise NoOverlap(_why_outside(path, crs, scene_crs, shapes, bounds))
    return LandmarkSource(path, crs, to_scene.accuracy_m, tuple(landmarks), unnamed, outside)


def _read(path: Path) -> tuple[dict[str, Any], np.ndarray, dict[str, np.ndarray]]:
    if not path.is_file():
        raise UnreadableSource(f"{path} does not exist or is not a file")
    try:
        meta, _, geometry, data = pyogrio.raw.read(path)
    except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, pyogrio.errors.FeatureError) as error:
        raise UnreadableSource(f"{path.name} is no vector file that can be read: {error}") from error
    if geometry is None or len(geometry) == 0:
        raise InvalidLandmarks(f"{path.name} holds no features")
    return meta, geometry, dict(zip(meta["fields"], data, strict=True))


def _check(path: Path, index: int, name: str, shape: Any) -> None:
    where = f"{path.name}: feature {index} ({name[:60]!r})"
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidLandmarks(f"{where} has a name of {len(name)} characters, at most {MAX_NAME_LENGTH} are taken")
    if shape is None or shape.is_empty:
        raise InvalidLandmarks(f"{where} has no geometry")
    if not np.isfinite(shapely.get_coordinates(shape)).all():
        raise InvalidLandmarks(f"{where} has coordinates that are not finite numbers")
    if not shape.is_valid:
        raise InvalidLandmarks(f"{where} is not a valid shape: {shapely.is_valid_reason(shape)}; mend it, e.g. in QGIS")


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _type(columns: dict[str, np.ndarray], index: int) -> str:
    for field in _TYPE_FIELDS:
        if field in columns and _text(columns[field][index]):
            return _text(columns[field][index]).lower()
    return "place"


def _aliases(columns: dict[str, np.ndarray], index: int, name: str) -> tuple[str, ...]:
    found: list[str] = []
    for field in _ALIAS_FIELDS:
        value = columns[field][index] if field in columns else None
        parts = value.split(";") if isinstance(value, str) else [] if value is None else list(value)
        found += [text for text in (_text(str(part)) for part in parts) if text]
    return tuple(alias for alias in dict.fromkeys(found) if alias != name)


def _why_outside(path: Path, crs: CRS, scene_crs: CRS, shapes: np.ndarray, bounds: Any) -> str:
    message = f"none of the {len(shapes)} features of {path.name} touches the scene"
    if crs.is_geographic:
        swapped = shapely.get_coordinates(shapes)[:, ::-1]
        x, y = conversion(WGS84, scene_crs).transformer.transform(swapped[:, 0], swapped[:, 1])
        if shapely.distance(shapely.multipoints(np.column_stack((x, y))[np.isfinite(x)]), bounds) < SAME_PLACE_M:
            return message + "; its coordinates look like latitude, longitude: GeoJSON wants longitude first"
    return message + "; is it of another place, or in another CRS than it says?"
