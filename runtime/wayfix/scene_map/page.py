"""Writes a scene as one HTML page that needs no other file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from wayfix.errors import InvalidOption
from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import point_scale
from wayfix.geo.frame import SceneFrame
from wayfix.html import check_path, embedded_json, escaped, fill, package_text, write_html
from wayfix.scene.scene import Scene
from wayfix.scene_map.features import landmark_features, point_features, way_features
from wayfix.scene_map.rasters import height_layer, photo_uri

PHOTO_LIMITS_PX = (64, 8192)
"""Long side of the photo; phones refuse pictures much larger."""

_PACKAGE = "wayfix.scene_map"
_HEIGHT_TITLES = {"dsm": "Surface heights (DSM)", "dtm": "Ground heights (DTM)"}
_DEGREE_M = 111_320.0
"""Metres per degree of latitude, and of longitude at the equator."""


def write_map(scene: Scene, path: Path, long_side_px: int = 3000) -> None:
    """Write the page that shows a scene; the photo in it is at most `long_side_px` pixels wide or high.

    Raises InvalidOption for a size or a path that cannot be, StorageFull or StorageFailed where it cannot be written.
    """
    low, high = PHOTO_LIMITS_PX
    if not low <= long_side_px <= high:
        raise InvalidOption(f"the photo's long side must be {low} to {high} pixels, got {long_side_px}")
    check_path(path)
    write_html(path, [fill(package_text(_PACKAGE, "template.html"), _page_parts(scene, long_side_px))])


def _page_parts(scene: Scene, long_side_px: int) -> dict[str, str]:
    return {
        "title": escaped(scene.id),
        "style": package_text(_PACKAGE, "style.css"),
        "canvas": package_text(_PACKAGE, "canvas.js"),
        "moves": package_text(_PACKAGE, "moves.js"),
        "panel": package_text(_PACKAGE, "panel.js"),
        "data": embedded_json(scene_data(scene, long_side_px)),
    }


def scene_data(scene: Scene, long_side_px: int) -> dict[str, Any]:
    """All that the page's script knows of a scene.

    Coordinates of shapes are centimetres, the photo's and heights' bounds metres, both from the south-west corner.
    """
    manifest, box = scene.manifest, scene.extent
    origin = manifest.origin
    crs = scene.frame.crs
    return {
        "id": scene.id,
        "revision": manifest.revision,
        "created": manifest.created,
        "crs": manifest.crs if manifest.crs.startswith("EPSG") else "",
        "crsName": crs.name,
        "verticalDatum": manifest.vertical_datum,
        "surveyDate": manifest.survey_date,
        "attribution": list(manifest.attribution),
        "gsd": manifest.gsd_m,
        "accuracy": manifest.wgs84_accuracy_m,
        "convergence": manifest.convergence_deg,
        "pointScale": point_scale(crs, origin.lon, origin.lat),
        "corner": [box.min_x, box.min_y],
        "size": [box.width, box.height],
        "lonlat": _corner_lonlats(scene.frame, box),
        "photo": photo_uri(scene.bev, long_side_px),
        "heights": _height_layers(scene),
        "landmarks": landmark_features(scene.landmarks, box),
        **_network_data(scene, box),
    }


def _height_layers(scene: Scene) -> list[dict[str, Any]]:
    layers = []
    for key, title in _HEIGHT_TITLES.items():
        grid = scene.dsm if key == "dsm" else scene.dtm
        layer = height_layer(grid, scene.extent) if grid is not None else None
        if layer is not None:
            layers.append({"key": key, "title": title, **layer})
    return layers


def _network_data(scene: Scene, box: WorldBox) -> dict[str, list[dict[str, Any]]]:
    """Ways, nodes that are more than a junction, and places; empty lists where the scene has none."""
    network = scene.network
    if network is None:
        return {"ways": [], "nodes": [], "places": []}
    return {
        "ways": way_features(network.ways, box),
        "nodes": point_features((node for node in network.nodes if node.kind), box),
        "places": point_features(scene.places, box),
    }


def _corner_lonlats(frame: SceneFrame, box: WorldBox) -> dict[str, Any]:
    """Longitude and latitude (degrees) of the corners, south-west, south-east, north-west, north-east.

    With the largest error in metres of interpolating between them, as found on a grid.
    """
    side = np.linspace(0.0, 1.0, 11)
    across, up = np.meshgrid(side, side)
    xs, ys = box.min_x + across.ravel() * box.width, box.min_y + up.ravel() * box.height
    lons, lats = frame.to_wgs84(xs, ys)
    lons = np.unwrap(lons, period=360.0)
    corners = [0, len(side) - 1, len(xs) - len(side), len(xs) - 1]
    u, v = across.ravel(), up.ravel()
    weights = np.stack([(1 - u) * (1 - v), u * (1 - v), (1 - u) * v, u * v])
    east = (weights.T @ lons[corners] - lons) * _DEGREE_M * math.cos(math.radians(float(lats.mean())))
    north = (weights.T @ lats[corners] - lats) * _DEGREE_M
    return {
        "lon": lons[corners].tolist(),
        "lat": lats[corners].tolist(),
        "error": float(np.hypot(east, north).max()),
    }
