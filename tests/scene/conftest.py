"""Small rasters and vector files, made here so that every number in them is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from affine import Affine

from wayfix.scene.importer import ImportOptions

UTM31 = "EPSG:32631"
ORIGIN = (500_000.0, 5_700_100.0)
"""Upper left corner of the test photo."""


def write_raster(path: Path, bands: np.ndarray, crs: str | None = UTM31, gsd: float = 0.5, **options: Any) -> Path:
    """A GeoTIFF whose upper left corner is ORIGIN; `bands` is (bands, rows, columns)."""
    transform = options.pop("transform", Affine(gsd, 0, ORIGIN[0], 0, -gsd, ORIGIN[1]))
    count, rows, columns = bands.shape
    profile = {"driver": "GTiff", "width": columns, "height": rows, "count": count, "dtype": bands.dtype}
    if transform is not None:
        profile["transform"] = transform
    if crs is not None:
        profile["crs"] = crs
    with rasterio.open(path, "w", **profile, **options) as out:
        out.write(bands)
    return path


def photo_pixels(rows: int = 200, columns: int = 300) -> np.ndarray:
    """A gradient with a red and a blue rectangle: (3, rows, columns)."""
    pixels = np.zeros((3, rows, columns), np.uint8)
    pixels[0] = np.linspace(60, 120, columns, dtype=np.uint8)[None]
    pixels[1] = np.linspace(60, 140, rows, dtype=np.uint8)[:, None]
    pixels[2] = 90
    pixels[:, 40:80, 60:120] = np.array([220, 30, 30], np.uint8)[:, None, None]
    pixels[:, 120:160, 200:240] = np.array([30, 60, 220], np.uint8)[:, None, None]
    return pixels


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """300 x 200 pixels of 0.5 m in UTM 31N."""
    return write_raster(tmp_path / "photo.tif", photo_pixels())


@pytest.fixture
def landmarks(tmp_path: Path) -> Path:
    """Three named places in WGS84 and one without a name."""
    from wayfix.geo.crs import parse_crs
    from wayfix.geo.frame import SceneFrame

    frame = SceneFrame(parse_crs(UTM31), *ORIGIN, 0.0)

    def ring(x0: float, y0: float, x1: float, y1: float) -> list[list[list[float]]]:
        corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)]
        return [[list(frame.lonlat(ORIGIN[0] + x, ORIGIN[1] - y)) for x, y in corners]]

    def feature(geometry: dict[str, Any], **properties: Any) -> dict[str, Any]:
        return {"type": "Feature", "geometry": geometry, "properties": properties}

    line = [list(frame.lonlat(ORIGIN[0] + x, ORIGIN[1] - 50)) for x in (0, 75, 150)]
    features = [
        feature({"type": "Polygon", "coordinates": ring(30, 20, 60, 40)}, name="Red Hall", type="hall", aliases=["RH"]),
        feature({"type": "Polygon", "coordinates": ring(100, 60, 120, 80)}, name="Café Bleu", type="cafe"),
        feature({"type": "LineString", "coordinates": line}, name="Mill Road", type="road", alt_name="Mill Rd;A1"),
        feature({"type": "Point", "coordinates": list(frame.lonlat(ORIGIN[0] + 5, ORIGIN[1] - 5))}, name=None),
    ]
    path = tmp_path / "landmarks.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}), encoding="utf-8")
    return path


@pytest.fixture
def heights(tmp_path: Path) -> Callable[..., Path]:
    """Writes a height raster over the photo: 10 m ground, 18 m where the red hall stands."""

    def write(name: str = "dsm.tif", change: Callable[[np.ndarray], None] | None = None, **options: Any) -> Path:
        cells = np.full((1, 100, 150), 10.0, np.float32)
        cells[0, 20:40, 30:60] = 18.0
        if change is not None:
            change(cells)
        return write_raster(tmp_path / name, cells, gsd=1.0, **options)

    return write


@pytest.fixture
def options(photo: Path, landmarks: Path) -> ImportOptions:
    """Photo and landmarks."""
    return ImportOptions(photo=photo, landmarks=landmarks)
