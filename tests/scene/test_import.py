"""Importing: what comes in whole, what is refused by name, and that a refusal leaves no trace."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyogrio.raw
import pytest
import rasterio
from affine import Affine

from wayfix import errors
from wayfix.geo.boxes import WorldBox
from wayfix.scene.folder import new_folder
from wayfix.scene.importer import ImportOptions, import_scene
from wayfix.scene.scene import Scene

from .conftest import ORIGIN, photo_pixels, write_raster


def left_over(folder: Path) -> set[str]:
    """Names in a folder that no input of the tests has."""
    return {p.name for p in folder.iterdir()} - {"photo.tif", "landmarks.geojson", "dsm.tif", "dtm.tif", "bad.tif"}


def refused(target: Path, options: ImportOptions, error: type[errors.WayfixError]) -> str:
    """Assert that the import is refused with this very error and that nothing was written; its message."""
    before = left_over(target.parent)
    with pytest.raises(error) as caught:
        import_scene(target, options)
    assert type(caught.value) is error
    assert left_over(target.parent) == before
    return str(caught.value)


def test_a_photo_alone_becomes_a_scene(tmp_path: Path, photo: Path) -> None:
    manifest, remarks = import_scene(tmp_path / "place", ImportOptions(photo=photo))
    assert remarks == []
    with Scene(tmp_path / "place") as scene:
        assert scene.problems() == []
        assert scene.id == "place"
        assert scene.extent == WorldBox(ORIGIN[0], ORIGIN[1] - 100, ORIGIN[0] + 150, ORIGIN[1])
        assert scene.heights_in(scene.extent) == (None, None)
        assert scene.landmarks == ()
    assert manifest.crs == "EPSG:32631"
    assert manifest.vertical_datum == "unknown"
    assert manifest.gsd_m == 0.5
    assert manifest.revision == 1


def test_the_files_are_read_by_other_programs(tmp_path: Path, options: ImportOptions) -> None:
    import_scene(tmp_path / "place", options)
    with rasterio.open(tmp_path / "place" / "bev.tif") as dataset:
        assert dataset.crs.to_epsg() == 32631
        assert dataset.transform == Affine(0.5, 0, ORIGIN[0], 0, -0.5, ORIGIN[1])
        assert dataset.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        pixels = dataset.read()
    assert np.abs(pixels.astype(int) - photo_pixels()).mean() < 3
    meta, _, geometry, _ = pyogrio.raw.read(tmp_path / "place" / "vectors.gpkg")
    assert meta["crs"] == "EPSG:32631"
    assert len(geometry) == 3


def test_landmarks_keep_names_aliases_types_and_places(tmp_path: Path, options: ImportOptions) -> None:
    _, remarks = import_scene(tmp_path / "place", options)
    assert remarks == ["1 features of landmarks.geojson have no name and were left out"]
    with Scene(tmp_path / "place") as scene:
        hall, cafe, road = scene.landmarks
    assert (hall.name, hall.type, hall.aliases) == ("Red Hall", "hall", ("RH",))
    assert (cafe.name, cafe.type, cafe.aliases) == ("Café Bleu", "cafe", ())
    assert road.aliases == ("Mill Rd", "A1")
    expected = (ORIGIN[0] + 30, ORIGIN[1] - 40, ORIGIN[0] + 60, ORIGIN[1] - 20)
    assert hall.geometry.bounds == pytest.approx(expected, abs=1e-3)


def test_heights_come_in_and_are_null_where_not_known(
    tmp_path: Path, photo: Path, heights: Callable[..., Path]
) -> None:
    def hole(cells: np.ndarray) -> None:
        cells[0, 60:80, 100:120] = -9999

    dsm = heights("dsm.tif", hole, nodata=-9999)
    dtm = heights("dtm.tif", lambda cells: cells.fill(10.0))
    import_scene(tmp_path / "place", ImportOptions(photo=photo, dsm=(dsm,), dtm=(dtm,), vertical_datum="local"))
    x, y = ORIGIN
    with Scene(tmp_path / "place") as scene:
        assert scene.heights_in(WorldBox(x + 35, y - 35, x + 55, y - 25)) == (10.0, 18.0)
        assert scene.heights_in(WorldBox(x + 105, y - 75, x + 115, y - 65)) == (10.0, None)
        assert scene.manifest.vertical_datum == "local"
        assert scene.manifest.origin.z == 10.0


def test_heights_in_feet_become_metres(tmp_path: Path, photo: Path, heights: Callable[..., Path]) -> None:
    options = ImportOptions(photo=photo, dsm=(heights(),), dtm=(heights("dtm.tif"),), height_unit="us-ft")
    import_scene(tmp_path / "place", options)
    x, y = ORIGIN
    with Scene(tmp_path / "place") as scene:
        ground, top = scene.heights_in(WorldBox(x + 35, y - 35, x + 55, y - 25))
    assert ground == pytest.approx(18 * 1200 / 3937, abs=1e-4)
    assert top == pytest.approx(18 * 1200 / 3937, abs=1e-4)


def test_a_vertical_crs_names_the_datum(tmp_path: Path, photo: Path, heights: Callable[..., Path]) -> None:
    dsm = heights(crs="EPSG:32631+5709")
    manifest, _ = import_scene(tmp_path / "place", ImportOptions(photo=photo, dsm=(dsm,)))
    assert manifest.vertical_datum == "NAP height"
    message = refused(
        tmp_path / "other", ImportOptions(photo=photo, dsm=(dsm,), vertical_datum="EPSG:5703"), errors.InvalidCrs
    )
    assert "NAP height" in message and "NAVD88 height" in message


def test_a_photo_in_feet_becomes_metres_without_resampling(tmp_path: Path) -> None:
    feet = write_raster(
        tmp_path / "photo.tif", photo_pixels(), crs="EPSG:2992", transform=Affine(2, 0, 650_000, 0, -2, 850_000)
    )
    manifest, _ = import_scene(tmp_path / "place", ImportOptions(photo=feet))
    assert manifest.crs == "EPSG:2991"
    assert manifest.gsd_m == pytest.approx(0.6096)
    assert manifest.extent.min_x == pytest.approx(650_000 * 0.3048, abs=1e-6)
    assert manifest.extent.max_y == pytest.approx(850_000 * 0.3048, abs=1e-6)


def test_a_rotated_photo_is_turned_north_up(tmp_path: Path) -> None:
    turn = Affine.translation(*ORIGIN) @ Affine.rotation(-20) @ Affine.scale(0.5, -0.5)
    rotated = write_raster(tmp_path / "photo.tif", photo_pixels(), transform=turn)
    import_scene(tmp_path / "place", ImportOptions(photo=rotated))
    with rasterio.open(tmp_path / "place" / "bev.tif") as dataset:
        assert dataset.transform.b == dataset.transform.d == 0
        x, y = turn @ (90, 60)  # the middle of the red rectangle
        red, green, blue = next(dataset.sample([(x, y)]))
        assert red > 180 and green < 80 and blue < 80
        assert dataset.dataset_mask()[0, -1] == 0


@pytest.mark.parametrize("count", [1, 4])
def test_grey_and_rgba_photos_are_taken(tmp_path: Path, count: int) -> None:
    bands = np.concatenate([photo_pixels(), np.full((1, 200, 300), 255, np.uint8)])[:count]
    import_scene(tmp_path / "place", ImportOptions(photo=write_raster(tmp_path / "photo.tif", bands)))
    with rasterio.open(tmp_path / "place" / "bev.tif") as dataset:
        assert dataset.count == 3


def test_replacing_counts_the_revision_and_keeps_the_old_scene_until_the_new_is_whole(
    tmp_path: Path, options: ImportOptions
) -> None:
    target = tmp_path / "place"
    import_scene(target, options)
    assert "--replace" in refused(target, dataclasses.replace(options, scene_id="other"), errors.SceneExists)
    bad = dataclasses.replace(options, replace=True, landmarks=tmp_path / "photo.tif")
    with pytest.raises(errors.UnreadableSource):
        import_scene(target, bad)
    assert Scene(target).manifest.revision == 1
    manifest, _ = import_scene(target, dataclasses.replace(options, replace=True))
    assert manifest.revision == 2
    assert Scene(target).problems() == []
    assert left_over(tmp_path) == {"place"}


def test_an_existing_folder_that_is_no_scene_is_never_touched(tmp_path: Path, photo: Path) -> None:
    target = tmp_path / "place"
    target.mkdir()
    (target / "thesis.txt").write_text("mine")
    refused(target, ImportOptions(photo=photo, replace=True), errors.SceneExists)
    assert (target / "thesis.txt").read_text() == "mine"


# ---- bad input: each its named error, and nothing written


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_raster_without_transform(tmp_path: Path) -> None:
    bad = write_raster(tmp_path / "bad.tif", photo_pixels(), transform=None)
    assert ".wld" in refused(tmp_path / "place", ImportOptions(photo=bad), errors.MissingTransform)


def test_a_raster_without_crs(tmp_path: Path) -> None:
    bad = write_raster(tmp_path / "bad.tif", photo_pixels(), crs=None)
    assert "--crs" in refused(tmp_path / "place", ImportOptions(photo=bad), errors.MissingCrs)
    import_scene(tmp_path / "place", ImportOptions(photo=bad, crs="EPSG:32631"))


def test_a_geographic_crs(tmp_path: Path) -> None:
    bad = write_raster(
        tmp_path / "bad.tif", photo_pixels(), crs="EPSG:4326", transform=Affine(1e-5, 0, 5.0, 0, -1e-5, 52.0)
    )
    assert "gdalwarp" in refused(tmp_path / "place", ImportOptions(photo=bad), errors.GeographicCrs)


def test_a_web_map_whose_metres_are_not_metres(tmp_path: Path) -> None:
    bad = write_raster(
        tmp_path / "bad.tif", photo_pixels(), crs="EPSG:3857", transform=Affine(0.5, 0, 545_000, 0, -0.5, 6_867_000)
    )
    assert "keeps lengths" in refused(tmp_path / "place", ImportOptions(photo=bad), errors.InvalidCrs)


def test_a_crs_that_contradicts_the_file(tmp_path: Path, photo: Path) -> None:
    refused(tmp_path / "place", ImportOptions(photo=photo, crs="EPSG:32632"), errors.InvalidCrs)
    refused(tmp_path / "place", ImportOptions(photo=photo, crs="no such thing"), errors.InvalidCrs)


def test_nan_heights_that_are_not_declared(tmp_path: Path, photo: Path, heights: Callable[..., Path]) -> None:
    def spoil(cells: np.ndarray) -> None:
        cells[0, 50, 50] = np.nan

    bad = heights(change=spoil)
    message = refused(tmp_path / "place", ImportOptions(photo=photo, dsm=(bad,)), errors.InvalidHeights)
    assert "nodata" in message
    declared = heights(change=spoil, nodata=np.nan)
    import_scene(tmp_path / "place", ImportOptions(photo=photo, dsm=(declared,)))


@pytest.mark.parametrize("value", [-9999.0, 1e6, np.inf])
def test_heights_that_no_ground_has(tmp_path: Path, photo: Path, heights: Callable[..., Path], value: float) -> None:
    bad = heights(change=lambda cells: cells.__setitem__((0, 3, 3), value))
    refused(tmp_path / "place", ImportOptions(photo=photo, dsm=(bad,)), errors.InvalidHeights)


def test_heights_of_unknown_unit(tmp_path: Path) -> None:
    transform = Affine(2, 0, 650_000, 0, -2, 850_000)
    photo = write_raster(tmp_path / "photo.tif", photo_pixels(), crs="EPSG:2992", transform=transform)
    dsm = write_raster(
        tmp_path / "dsm.tif", np.full((1, 200, 300), 400, np.float32), crs="EPSG:2992", transform=transform
    )
    message = refused(tmp_path / "place", ImportOptions(photo=photo, dsm=(dsm,)), errors.InvalidHeights)
    assert "--height-unit" in message
    import_scene(tmp_path / "place", ImportOptions(photo=photo, dsm=(dsm,), height_unit="ft"))
    with Scene(tmp_path / "place") as scene:
        assert scene.heights_in(scene.extent)[1] == pytest.approx(400 * 0.3048, abs=1e-3)


def test_heights_of_another_place(tmp_path: Path, photo: Path, heights: Callable[..., Path]) -> None:
    bad = heights(transform=Affine(1, 0, ORIGIN[0] + 5000, 0, -1, ORIGIN[1]))
    refused(tmp_path / "place", ImportOptions(photo=photo, dsm=(bad,)), errors.NoOverlap)


def test_sixteen_bits_are_no_photo(tmp_path: Path) -> None:
    bad = write_raster(tmp_path / "bad.tif", photo_pixels().astype(np.uint16))
    assert "gdal_translate" in refused(tmp_path / "place", ImportOptions(photo=bad), errors.UnreadableSource)


def test_a_file_cut_short(tmp_path: Path, photo: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (3, 600, 600), np.uint8)
    bad = write_raster(tmp_path / "bad.tif", noise, compress="deflate")
    bad.write_bytes(bad.read_bytes()[: bad.stat().st_size // 2])
    refused(tmp_path / "place", ImportOptions(photo=bad), errors.UnreadableSource)
    refused(tmp_path / "place", ImportOptions(photo=tmp_path / "absent.tif"), errors.UnreadableSource)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"type": "FeatureCollection", "features": []}', errors.InvalidLandmarks),
        ("not json", errors.UnreadableSource),
        (
            '{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"title": "x"}, '
            '"geometry": {"type": "Point", "coordinates": [3.0, 51.45]}}]}',
            errors.InvalidLandmarks,
        ),
        (
            '{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"name": "x"}, '
            '"geometry": {"type": "Polygon", "coordinates": '
            "[[[3,51.45],[3.1,51.46],[3.1,51.45],[3,51.46],[3,51.45]]]}}]}",
            errors.InvalidLandmarks,
        ),
    ],
)
def test_unusable_landmark_files(tmp_path: Path, photo: Path, text: str, error: type[errors.WayfixError]) -> None:
    path = tmp_path / "landmarks.geojson"
    path.write_text(text)
    refused(tmp_path / "place", ImportOptions(photo=photo, landmarks=path), error)


def test_landmarks_with_latitude_first_get_a_hint(tmp_path: Path, photo: Path) -> None:
    path = tmp_path / "landmarks.geojson"
    path.write_text(
        '{"type": "FeatureCollection", "features": [{"type": "Feature", "properties": {"name": "Red Hall"}, '
        '"geometry": {"type": "Point", "coordinates": [51.4506, 3.0005]}}]}'
    )
    assert "longitude first" in refused(
        tmp_path / "place", ImportOptions(photo=photo, landmarks=path), errors.NoOverlap
    )


# ---- the folder itself


def _import_and_hold(target: Path, entered: object, leave: object) -> None:
    with new_folder(target, replace=False) as folder:
        (folder / "scene.json").write_text("{}")
        entered.set()  # type: ignore[attr-defined]
        leave.wait(30)  # type: ignore[attr-defined]


def test_two_imports_into_one_folder_at_once(tmp_path: Path, photo: Path) -> None:
    context = multiprocessing.get_context("spawn")
    entered, leave = context.Event(), context.Event()
    other = context.Process(target=_import_and_hold, args=(tmp_path / "place", entered, leave))
    other.start()
    try:
        assert entered.wait(30)
        with pytest.raises(errors.SceneBusy):
            import_scene(tmp_path / "place", ImportOptions(photo=photo))
    finally:
        leave.set()
        other.join(30)
    assert left_over(tmp_path) == {"place"}


def test_a_killed_import_leaves_no_scene_and_the_next_one_succeeds(tmp_path: Path, photo: Path) -> None:
    context = multiprocessing.get_context("spawn")
    entered, leave = context.Event(), context.Event()
    other = context.Process(target=_import_and_hold, args=(tmp_path / "place", entered, leave))
    other.start()
    assert entered.wait(30)
    other.kill()
    other.join(30)
    assert not (tmp_path / "place").exists()
    import_scene(tmp_path / "place", ImportOptions(photo=photo))
    assert left_over(tmp_path) == {"place"}


def test_an_interrupted_import_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "place", replace=False) as folder:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (3, 1500, 1500), np.uint8)
    photo = write_raster(tmp_path / "photo.tif", noise)
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(errors.StorageFull) as caught:
            import_scene(disk / "place", ImportOptions(photo=photo))
        assert "free some space" in str(caught.value)
        assert list(disk.iterdir()) == []
    finally:
        for _ in range(50):
            if not subprocess.run(["umount", str(disk)], check=False).returncode:
                break
            time.sleep(0.1)
