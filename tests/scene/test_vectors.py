"""vectors.gpkg: what is written comes back, in order, and the same content has the same bytes."""

from __future__ import annotations

from pathlib import Path

import pyogrio
import pyogrio.raw
import pytest
import shapely

from wayfix import errors
from wayfix.scene.landmark import Landmark
from wayfix.scene.network import FootNode, FootWay, Network, Place
from wayfix.scene.vectors import read_landmarks, read_network, read_places, write_landmarks, write_network

CRS = "EPSG:32631"

LANDMARKS = [
    Landmark("Red Hall", "hall", shapely.box(0, 0, 10, 10), ("RH", "🏛 Hall")),
    Landmark("مكتبة", "library", shapely.Point(5, 5)),
    Landmark("Mill Road", "road", shapely.MultiLineString([[(0, 0), (1, 1)], [(2, 2), (3, 3)]])),
]
NETWORK = Network(
    nodes=(
        FootNode(12_345_678_901, 500_000.125, 5_700_000.5, "gate", barrier="gate", access="private"),
        FootNode(-7, 0.1, 0.2),
    ),
    ways=(
        FootWay(
            id=99,
            nodes=(12_345_678_901, 5, -7),
            geometry=shapely.LineString([(500_000.125, 5_700_000.5), (1.1, 2.2), (0.1, 0.2)]),
            kind="steps",
            area=True,
            name="Großer Weg",
            layer=-1,
            width_m=1.25,
            step_count=0,
            lit="no",
        ),
        FootWay(id=98, nodes=(5, -7), geometry=shapely.LineString([(1.1, 2.2), (0.1, 0.2)]), kind="footway"),
    ),
)
PLACES = (Place("node/3", "shop=bakery", 4.5, 5.5, "Bröd", level="0"), Place("node/3", "amenity=cafe", 4.5, 5.5))


def write_all(path: Path) -> Path:
    write_landmarks(path, LANDMARKS, CRS)
    write_network(path, NETWORK, PLACES, CRS)
    return path


def test_what_is_written_comes_back_in_order(tmp_path: Path) -> None:
    path = write_all(tmp_path / "vectors.gpkg")
    assert read_landmarks(path) == LANDMARKS
    assert read_network(path) == NETWORK
    assert read_places(path) == PLACES


def test_other_programs_see_four_layers_in_the_scenes_crs(tmp_path: Path) -> None:
    path = write_all(tmp_path / "vectors.gpkg")
    layers = dict(pyogrio.list_layers(path).tolist())
    assert layers == {"landmarks": "Unknown", "footways": "LineString", "footnodes": "Point", "places": "Point"}
    for layer in layers:
        assert pyogrio.read_info(path, layer=layer)["crs"] == CRS


def test_unknown_values_are_null_and_not_empty(tmp_path: Path) -> None:
    path = write_all(tmp_path / "vectors.gpkg")
    (row,) = pyogrio.raw.read(path, layer="footways", where="layer IS NULL AND width_m IS NULL AND lit IS NULL")[2]
    assert shapely.from_wkb(row) == NETWORK.ways[1].geometry


def test_the_same_content_has_the_same_bytes(tmp_path: Path) -> None:
    before = pyogrio.get_gdal_config_option("OGR_CURRENT_DATE")
    first, second = (write_all(tmp_path / name).read_bytes() for name in ("a.gpkg", "b.gpkg"))
    assert first == second
    assert pyogrio.get_gdal_config_option("OGR_CURRENT_DATE") == before


def test_a_network_needs_no_landmarks_and_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "vectors.gpkg"
    write_network(path, Network(), (), CRS)
    assert read_network(path) == Network()
    assert read_places(path) == ()


def test_landmarks_alone_have_no_network(tmp_path: Path) -> None:
    path = tmp_path / "vectors.gpkg"
    write_landmarks(path, LANDMARKS, CRS)
    with pytest.raises(errors.SceneCorrupt):
        read_network(path)


def test_a_layer_without_its_columns_is_corrupt(tmp_path: Path) -> None:
    path = write_all(tmp_path / "vectors.gpkg")
    pyogrio.raw.write(
        path,
        geometry=shapely.to_wkb([shapely.Point(0, 0)]),
        field_data=[],
        fields=[],
        layer="places",
        driver="GPKG",
        geometry_type="Point",
        crs=CRS,
    )
    with pytest.raises(errors.SceneCorrupt):
        read_places(path)


def test_a_file_that_is_no_geopackage_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "vectors.gpkg"
    path.write_bytes(b"nothing")
    with pytest.raises(errors.SceneCorrupt):
        read_landmarks(path)


def test_a_folder_that_is_not_there_is_a_storage_failure(tmp_path: Path) -> None:
    with pytest.raises(errors.StorageFailed):
        write_landmarks(tmp_path / "missing" / "vectors.gpkg", LANDMARKS, CRS)
