"""Queries with their true boxes, read from GeoJSON: what a suite asks of a scene."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyproj.exceptions
import shapely
import shapely.geometry
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wayfix.errors import UnreadableQueries
from wayfix.geo.boxes import WorldBox
from wayfix.geo.frame import SceneFrame
from wayfix.scene.scene import Scene

SAME_BOX_M = 0.01
"""A target is the candidate whose every edge is this close to its own."""


@dataclass(frozen=True)
class Case:
    """One query and its truth."""

    id: str
    query: str
    box: WorldBox | None
    """None where the scene holds no such object."""
    kind: str | None = None
    landmark: str | None = None
    landmark_distance_m: float | None = None
    distractors_50m: int | None = None


@dataclass(frozen=True)
class QuerySet:
    """The queries of one scene, and the objects an answer is ranked among."""

    cases: tuple[Case, ...]
    candidates: NDArray[np.float64]
    """(N, 4) min_x, min_y, max_x, max_y in the scene's CRS, metres; N is 0 where they are not known."""

    def number_of(self, target: WorldBox) -> int | None:
        """Which candidate the target is; None where candidates are not known.

        Raises UnreadableQueries where they are known and the target is not among them.
        """
        if not len(self.candidates):
            return None
        wanted = (target.min_x, target.min_y, target.max_x, target.max_y)
        distances = np.abs(self.candidates - wanted).max(axis=1)
        if distances.min() > SAME_BOX_M:
            raise UnreadableQueries(f"the candidates lack the target at {wanted}: an answer cannot be ranked")
        return int(distances.argmin())


class _Query(BaseModel):
    model_config = ConfigDict(extra="ignore")

    id: Annotated[str, Field(min_length=1)]
    query: Annotated[str, Field(min_length=1)]
    box: Any = None
    kind: str | None = None
    landmark: str | None = None
    landmark_distance_m: float | None = None
    distractors_50m: int | None = None


def read_queries(path: Path, scene: Scene) -> QuerySet:
    """Read a GeoJSON FeatureCollection, or a JSON list of objects with `id`, `query` and `box`.

    A box is six numbers in the scene's CRS (min_x, min_y, min_z, max_x, max_y, max_z; heights may be null), or a
    GeoJSON polygon in WGS84, which stands for its bounds in the scene's CRS; a feature without `box` is taken by its
    geometry. Null in both places: the scene holds no such object. A collection's `candidates` are boxes of six numbers.
    Raises UnreadableQueries.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableQueries(f"{path} is no file of queries: {error}") from error
    collection = isinstance(content, dict) and content.get("type") == "FeatureCollection"
    entries = content.get("features") if collection else content
    if not isinstance(entries, list) or not entries:
        raise UnreadableQueries(
            f"{path} holds no queries; expected a GeoJSON FeatureCollection whose properties have id and query, "
            "or a JSON list of objects with id, query and box"
        )
    cases = tuple(_case(entry, number, path, scene.frame) for number, entry in enumerate(entries))
    twice = [name for name, n in Counter(case.id for case in cases).items() if n > 1]
    if twice:
        raise UnreadableQueries(f"{path}: ids must differ; {twice[0]!r} is there more than once")
    listed = content.get("candidates", []) if collection else []
    candidates = [_six(box, f"{path}: candidate {n}") for n, box in enumerate(listed)]
    flat = np.array([(b.min_x, b.min_y, b.max_x, b.max_y) for b in candidates], float).reshape(-1, 4)
    return QuerySet(cases, flat)


def _case(entry: Any, number: int, path: Path, frame: SceneFrame) -> Case:
    where = f"{path}: query {number}"
    geometry = None
    if isinstance(entry, dict) and entry.get("type") == "Feature":
        geometry, entry = entry.get("geometry"), {"id": entry.get("id"), **(entry.get("properties") or {})}
    try:
        query = _Query.model_validate(entry)
    except ValidationError as error:
        problem = error.errors()[0]
        raise UnreadableQueries(f"{where}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
    box = query.box if query.box is not None else geometry
    if box is not None:
        box = _six(box, where) if isinstance(box, list) else _bounds(box, where, frame)
    return Case(
        query.id, query.query, box, query.kind, query.landmark, query.landmark_distance_m, query.distractors_50m
    )


def _six(values: Any, where: str) -> WorldBox:
    numbers = [v for v in values if isinstance(v, (int, float))] if isinstance(values, list) else []
    if not isinstance(values, list) or len(values) != 6 or len(numbers) + values.count(None) != 6:
        raise UnreadableQueries(
            f"{where}: a box is six numbers, min_x, min_y, min_z, max_x, max_y, max_z; got {values!r}"
        )
    min_x, min_y, min_z, max_x, max_y, max_z = values
    if None in (min_x, min_y, max_x, max_y) or not (min_x < max_x and min_y < max_y) or not np.isfinite(numbers).all():
        raise UnreadableQueries(f"{where}: a box needs finite min_x < max_x and min_y < max_y; got {values}")
    known = min_z is not None and max_z is not None
    return WorldBox(min_x, min_y, max_x, max_y, min_z if known else None, max_z if known else None)


def _bounds(geometry: Any, where: str, frame: SceneFrame) -> WorldBox:
    """The bounds, in the scene's CRS, of a WGS84 polygon."""
    try:
        lon_lat = shapely.get_coordinates(shapely.geometry.shape(geometry))
        x, y = frame.to_wgs84.inverse(*lon_lat.T)
        box = WorldBox(float(min(x)), float(min(y)), float(max(x)), float(max(y)))
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        shapely.errors.ShapelyError,
        pyproj.exceptions.ProjError,
    ) as e:
        raise UnreadableQueries(f"{where}: its geometry is no WGS84 polygon (lon, lat): {e}") from e
    if not box.area > 0:
        raise UnreadableQueries(f"{where}: its polygon has no area")
    return box
