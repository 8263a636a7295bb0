"""A real place: Autzen Stadium, Eugene. A photo in feet with a world file and a WKT without vertical datum."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyogrio.raw
import pytest
import rasterio

from wayfix.agent.loop import Grounder
from wayfix.cli import main
from wayfix.geo.boxes import WorldBox, iou_bev
from wayfix.policy.baseline import BaselinePolicy
from wayfix.scene.scene import Scene

DATA = Path(__file__).parents[2] / "shared" / "data" / "autzen"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the survey data is not beside this checkout")

FOOT = 0.3048
WLD = (1.0, 635615.9278659122, 853362.1430851521)
"""autzen.wld: pixel size in feet, x and y of the centre of the upper left pixel."""
COLUMNS, ROWS = 3248, 4385


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Imported with one command."""
    folder = tmp_path_factory.mktemp("autzen") / "autzen"
    photo, crs, marks = DATA / "autzen.jpg", DATA / "autzen-srs.wkt", DATA / "landmarks.geojson"
    command = ["scene", "import", folder, "--photo", photo, "--crs", crs, "--landmarks", marks, "--quiet"]
    assert main([str(part) for part in command]) == 0
    return Scene(folder)


def test_the_scene_is_in_metres_and_its_datum_unknown(scene: Scene) -> None:
    assert scene.manifest.crs == "EPSG:2993"
    assert scene.manifest.gsd_m == pytest.approx(FOOT)
    assert scene.manifest.vertical_datum == "unknown"
    assert scene.heights_in(scene.extent) == (None, None)


def test_corners_match_the_world_file_with_its_half_pixel(scene: Scene) -> None:
    left = (WLD[1] - 0.5 * WLD[0]) * FOOT
    top = (WLD[2] + 0.5 * WLD[0]) * FOOT
    right, bottom = left + COLUMNS * WLD[0] * FOOT, top - ROWS * WLD[0] * FOOT
    extent = scene.extent
    assert (extent.min_x, extent.min_y, extent.max_x, extent.max_y) == pytest.approx(
        (left, bottom, right, top), abs=0.01
    )
    with rasterio.open(scene.folder / "bev.tif") as dataset:
        assert (dataset.width, dataset.height) == (COLUMNS, ROWS)
        assert dataset.bounds == pytest.approx((left, bottom, right, top), abs=0.01)
        assert dataset.crs.to_epsg() == 2993


def helmert_to_harn(lon: float, lat: float) -> tuple[float, float]:
    """WGS84 -> NAD83(HARN) by EPSG:1901 reversed (coordinate frame rotation), on the GRS80 and WGS84 ellipsoids."""
    a, f = 6378137.0, 1 / 298.257223563
    e2 = f * (2 - f)
    phi, lam = math.radians(lat), math.radians(lon)
    n = a / math.sqrt(1 - e2 * math.sin(phi) ** 2)
    wgs = np.array([n * math.cos(phi) * math.cos(lam), n * math.cos(phi) * math.sin(lam), n * (1 - e2) * math.sin(phi)])
    shift = np.array([-0.9910, 1.9072, 0.5129])
    rx, ry, rz = (math.radians(s / 3600) for s in (-0.0257899075194932, -0.0096500989602704, -0.0116599432323421))
    rotation = np.array([[1, rz, -ry], [-rz, 1, rx], [ry, -rx, 1]])
    x, y, z = np.linalg.solve(rotation, wgs - shift)
    f = 1 / 298.257222101
    e2 = f * (2 - f)
    p, phi = math.hypot(x, y), math.atan2(z, math.hypot(x, y) * (1 - e2))
    for _ in range(10):
        n = a / math.sqrt(1 - e2 * math.sin(phi) ** 2)
        phi = math.atan2(z + e2 * n * math.sin(phi), p)
    return math.degrees(math.atan2(y, x)), math.degrees(phi)


def lambert_metres(lon: float, lat: float) -> tuple[float, float]:
    """Lambert conformal conic with the WKT's parameters (Snyder 1987, equations 15-1 to 15-9), feet -> metres."""
    a, f = 6378137.0, 1 / 298.257222101
    e = math.sqrt(f * (2 - f))

    def m(phi: float) -> float:
        return math.cos(phi) / math.sqrt(1 - (e * math.sin(phi)) ** 2)

    def t(phi: float) -> float:
        s = e * math.sin(phi)
        return math.tan(math.pi / 4 - phi / 2) / ((1 - s) / (1 + s)) ** (e / 2)

    phi1, phi2, phi0, lam0 = (math.radians(v) for v in (43.0, 45.5, 41.75, -120.5))
    n = (math.log(m(phi1)) - math.log(m(phi2))) / (math.log(t(phi1)) - math.log(t(phi2)))
    big_f = m(phi1) / (n * t(phi1) ** n)
    rho, rho0 = (a * big_f * t(phi) ** n for phi in (math.radians(lat), phi0))
    theta = n * (math.radians(lon) - lam0)
    false_easting = 1312335.958005249 * FOOT
    return false_easting + rho * math.sin(theta), rho0 - rho * math.cos(theta)


@pytest.mark.parametrize("name", ["Autzen Stadium", "Casanova Center", "Science Factory"])
def test_landmarks_match_the_formulas(scene: Scene, name: str) -> None:
    features = json.loads((DATA / "landmarks.geojson").read_text())["features"]
    ring = next(f["geometry"]["coordinates"][0] for f in features if f["properties"]["name"] == name)
    expected = [lambert_metres(*helmert_to_harn(lon, lat)) for lon, lat in ring]
    placed = next(mark.geometry for mark in scene.landmarks if mark.name == name)
    assert np.abs(np.array(placed.exterior.coords) - np.array(expected)).max() < 0.05


def test_other_programs_read_the_landmarks(scene: Scene) -> None:
    meta, _, geometry, data = pyogrio.raw.read(scene.folder / "vectors.gpkg", layer="landmarks")
    assert meta["crs"] == "EPSG:2993"
    assert len(geometry) == 8
    assert "Willamette River" in data[list(meta["fields"]).index("name")]


@pytest.mark.parametrize("query_id", ["autzen-1", "autzen-4"])
def test_named_places_are_found(scene: Scene, query_id: str) -> None:
    entry = next(q for q in json.loads((DATA / "queries.json").read_text()) if q["id"] == query_id)
    lon, lat = np.array(entry["box"]["coordinates"][0]).T
    x, y = scene.frame.to_wgs84.inverse(lon, lat)
    truth = WorldBox(float(x.min()), float(y.min()), float(x.max()), float(y.max()))
    result, _, _ = Grounder(scene, BaselinePolicy()).ground(entry["query"])
    assert result.code == "ok"
    assert result.box is not None
    assert iou_bev(result.box, truth) >= 0.9
