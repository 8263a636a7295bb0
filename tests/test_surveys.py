"""Real surveys: airborne points of Amsterdam over its building register, and of Autzen over its photo."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import shapely

from wayfix.geo.boxes import WorldBox
from wayfix.scene.importer import ImportOptions, import_scene
from wayfix.scene.scene import Scene

DATA = Path(__file__).parents[2] / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the survey data is not beside this checkout")

BUILDING = 6


def footprints() -> list[shapely.Polygon]:
    """The building register's outlines, EPSG:28992."""
    shapes = []
    for name in ("bag_buildings_demo.csv", "bgt_buildings_demo.csv"):
        with (DATA / "amsterdam" / "zuid" / "d_vector" / name).open() as stream:
            shapes += [shapely.Polygon(json.loads(row["polygon"])) for row in csv.DictReader(stream)]
    return shapes


@pytest.mark.parametrize("tile", ["ahn_2386_9702", "ahn_2397_9705"])
def test_amsterdams_building_points_lie_in_its_footprints(tmp_path: Path, tile: str) -> None:
    cloud = DATA / "amsterdam" / "zuid" / "a_pointcloud" / f"{tile}.laz"
    manifest, _ = import_scene(tmp_path / tile, ImportOptions(clouds=(cloud,), crs="EPSG:28992+5709"))
    assert manifest.crs == "EPSG:28992"
    assert manifest.vertical_datum == "NAP height"
    with Scene(tmp_path / tile) as scene:
        assert scene.points is not None
        points = scene.points.read(scene.extent)
        xyz = points.xyz + points.origin
        # Eaves, bays and points on walls stand out up to a metre; a shift of three would be plain to see.
        known = shapely.union_all(footprints()).buffer(1.0)
        shapely.prepare(known)
        building = xyz[points.classes == BUILDING]

        def inside(dx: float, dy: float) -> float:
            return float(shapely.contains_xy(known, building[:, 0] + dx, building[:, 1] + dy).mean())

        assert inside(0, 0) > 0.92
        assert all(inside(dx, dy) < inside(0, 0) - 0.05 for dx, dy in ((3, 0), (-3, 0), (0, 3), (0, -3)))
        # Streets of Amsterdam lie around 1 m above NAP.
        assert -1.0 < float(np.median(xyz[points.classes == 2, 2])) < 2.0
        x, y = building[:, :2].mean(axis=0)
        ground, top = scene.heights_in(WorldBox(x - 3, y - 3, x + 3, y + 3))
        assert ground is not None and top is not None and top - ground > 5


def test_autzens_photo_and_clouds_become_one_scene_in_metres(tmp_path: Path) -> None:
    autzen = DATA / "autzen"
    manifest, remarks = import_scene(
        tmp_path / "autzen",
        ImportOptions(
            photo=autzen / "autzen.jpg",
            clouds=(autzen / "autzen_trim.laz", autzen / "autzen-thin-srs.las"),
            crs=str(autzen / "autzen-srs.wkt"),
            height_unit="ft",
            landmarks=autzen / "landmarks.geojson",
        ),
    )
    assert manifest.crs == "EPSG:2993"
    assert manifest.registration is not None and manifest.registration.pixels < 1.0
    assert any("pixels from the photo" in remark for remark in remarks)
    with Scene(tmp_path / "autzen") as scene:
        assert scene.problems() == []
        assert scene.points is not None and scene.dsm is not None
        bounds = scene.points.bounds
        assert bounds.min_z is not None and bounds.max_z is not None
        assert bounds.min_z > 406 * 0.3048 - 1 and bounds.max_z < 595 * 0.3048  # the park lies at 410 ft
        # A cell without points nearby has no height; most of the thinned area has none.
        cells = scene.dsm.window(scene.extent)
        assert 0.02 < np.isfinite(cells).mean() < 0.2
        empty = WorldBox(scene.extent.min_x + 2, scene.extent.max_y - 4, scene.extent.min_x + 4, scene.extent.max_y - 2)
        assert scene.heights_in(empty) == (None, None)
