"""A procedural city as a scene folder, and its expressions as a GeoJSON file of queries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyproj import CRS

from wayfix.geo.boxes import WorldBox
from wayfix.geo.frame import SceneFrame
from wayfix.scene.folder import new_folder
from wayfix.scene.manifest import Manifest, read_manifest
from wayfix.scene.writer import SceneWriter
from wayfix.synth.city import City
from wayfix.synth.expressions import Expression

CITY_CRS = CRS.from_epsg(32631)
ATTRIBUTION = "Procedural city made by Wayfix"
QUERIES_FILE = "queries.geojson"


def write_city(
    target: Path,
    city: City,
    expressions: Sequence[Expression] = (),
    *,
    scene_id: str | None = None,
    replace: bool = False,
    quiet: bool = True,
) -> Manifest:
    """Write a city as the scene `target`, its expressions as queries.geojson in it. Raises SceneExists and its like."""
    revision = read_manifest(target).revision + 1 if replace and (target / "scene.json").exists() else 1
    rows, columns = city.bev.shape[:2]
    grid_rows, grid_columns = city.dsm.shape
    with new_folder(target, replace) as folder:
        writer = SceneWriter(folder, CITY_CRS, quiet)
        writer.photo((city.extent, columns, rows), photo_array_blocks(city.bev))
        writer.heights("dsm", (city.extent, grid_columns, grid_rows), [(0, city.dsm)])
        writer.heights("dtm", (city.extent, grid_columns, grid_rows), [(0, city.dtm)])
        writer.points(city.points_xyz, city.points_rgb, city.points_class)
        writer.landmarks(city.landmarks)
        manifest = writer.finish(
            scene_id=scene_id or f"city-{city.config.split}-{city.config.seed}",
            revision=revision,
            grid=(city.extent, columns, rows),
            vertical_datum="local",
            sources=(),
            attribution=(ATTRIBUTION,),
            survey_date=None,
            origin_z=float(round(float(np.median(city.dtm)))),
        )
        if expressions:
            origin = manifest.origin
            _write_queries(folder / QUERIES_FILE, SceneFrame(CITY_CRS, origin.x, origin.y, origin.z), city, expressions)
    return manifest


def photo_array_blocks(bev: NDArray[np.uint8]) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]:
    """Row blocks of an RGB array (h, w, 3) without holes, as SceneWriter.photo takes them."""
    for row in range(0, bev.shape[0], 512):
        part = bev[row : row + 512]
        yield row, np.ascontiguousarray(part.transpose(2, 0, 1)), np.full(part.shape[:2], 255, np.uint8)


def _write_queries(path: Path, frame: SceneFrame, city: City, expressions: Sequence[Expression]) -> None:
    """GeoJSON features: geometry the target's WGS84 footprint, null if it is absent; all else as properties.

    The collection's member `candidates` holds the boxes of all buildings and cars, among which answers are ranked.
    """
    features: list[dict[str, Any]] = []
    for e in expressions:
        box = e.box
        properties = {
            "id": e.id,
            "query": e.query,
            "kind": e.kind,
            "box": None if box is None else _six(box),
            "landmark": e.landmark,
            "landmark_distance_m": e.landmark_distance_m,
            "distractors_50m": e.distractors_50m,
        }
        geometry = None if box is None else frame.wgs84_geometry(box)
        features.append({"type": "Feature", "geometry": geometry, "properties": properties})
    candidates = [_six(item.box) for item in city.objects if item.kind in ("building", "car")]
    collection = {"type": "FeatureCollection", "candidates": candidates, "features": features}
    path.write_text(json.dumps(collection, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _six(box: WorldBox) -> list[float | None]:
    return [box.min_x, box.min_y, box.min_z, box.max_x, box.max_y, box.max_z]
