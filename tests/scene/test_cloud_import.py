"""Clouds become photo, heights and point tiles; imports go on after a kill; sources are reconciled by rule."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import random
import time
from pathlib import Path

import laspy
import numpy as np
import pytest
import rasterio
from affine import Affine
from pyproj import CRS

from wayfix import errors
from wayfix.bench.cloud import CloudRecipe, write_cloud
from wayfix.cli import main
from wayfix.geo.boxes import WorldBox
from wayfix.scene.importer import ImportOptions, import_scene
from wayfix.scene.scene import Scene

X0, Y0 = 500_000.0, 5_700_000.0
HOUSES = [(2, 2, 10, 10), (27, 2, 35, 10), (27, 27, 35, 35)]
"""Inner parts of generated houses, metres from the corner; see bench/cloud.py."""


def ground_at(x: float, y: float) -> float:
    return float(20 + 3 * np.sin(x / 90) + 2 * np.cos(y / 70))


def storeys_at(x: float, y: float) -> float:
    return float(4 + 3 * np.mod(np.floor(x / 25) * 7 + np.floor(y / 25) * 13, 4))


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """300,000 points of a town 88 m wide: without classes, and with a ground class."""
    folder = tmp_path_factory.mktemp("clouds")
    paths = {"plain": folder / "plain.laz", "ground": folder / "ground.las"}
    for name, path in paths.items():
        write_cloud(path, CloudRecipe(points=300_000, classified=name == "ground"), quiet=True)
    return paths


def write_las(path: Path, xyz: np.ndarray, rgb: tuple[int, int, int] = (200, 30, 30), epsg: int = 32631) -> Path:
    header = laspy.LasHeader(point_format=7, version="1.4")
    header.offsets, header.scales = xyz.min(axis=0), [0.001] * 3
    header.add_crs(CRS.from_epsg(epsg))
    data = laspy.LasData(header)
    data.x, data.y, data.z = xyz.T
    data.red, data.green, data.blue = (np.full(len(xyz), v * 257, np.uint16) for v in rgb)
    data.write(path)
    return path


def content(folder: Path) -> dict[str, object]:
    """Every file's bytes, and the manifest without its time."""
    files: dict[str, object] = {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }
    manifest = json.loads(files.pop("scene.json"))  # type: ignore[arg-type]
    files["manifest"] = {k: v for k, v in manifest.items() if k not in ("created", "checksum")}
    return files


@pytest.mark.parametrize("name", ["plain", "ground"])
def test_a_cloud_alone_becomes_a_whole_scene(tmp_path: Path, clouds: dict[str, Path], name: str) -> None:
    manifest, remarks = import_scene(tmp_path / "town", ImportOptions(clouds=(clouds[name],)))
    assert remarks == []
    assert manifest.crs == "EPSG:32631"
    assert manifest.gsd_m == 0.125
    with Scene(tmp_path / "town") as scene:
        assert scene.problems() == []
        assert scene.points is not None and scene.points.count == 300_000
        for x0, y0, x1, y1 in HOUSES:
            ground, top = scene.heights_in(WorldBox(X0 + x0, Y0 + y0, X0 + x1, Y0 + y1))
            middle = (x0 + x1) / 2, (y0 + y1) / 2
            assert ground == pytest.approx(ground_at(*middle), abs=0.6)
            assert top == pytest.approx(ground_at(*middle) + storeys_at(*middle), abs=0.5)
        roof = scene.bev.read(0, round(5 / 0.125), scene.bev.levels[0].height - round(7 / 0.125), 10, 10)
        assert roof[..., 0].mean() > roof[..., 1].mean() + 40  # roofs are red


def test_the_same_import_again_has_nothing_to_do(tmp_path: Path, clouds: dict[str, Path]) -> None:
    options = ImportOptions(clouds=(clouds["ground"],))
    first, _ = import_scene(tmp_path / "town", options)
    before = content(tmp_path / "town")
    second, remarks = import_scene(tmp_path / "town", options)
    assert second == first
    assert "complete already" in remarks[0]
    assert content(tmp_path / "town") == before


def test_holes_stay_unknown_and_masked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    xyz = np.column_stack((rng.uniform(0, 60, 60_000) + X0, rng.uniform(0, 60, 60_000) + Y0, np.full(60_000, 12.0)))
    hole = (np.abs(xyz[:, 0] - X0 - 30) < 8) & (np.abs(xyz[:, 1] - Y0 - 30) < 8)
    import_scene(tmp_path / "town", ImportOptions(clouds=(write_las(tmp_path / "c.las", xyz[~hole]),)))
    with Scene(tmp_path / "town") as scene:
        assert scene.heights_in(WorldBox(X0 + 26, Y0 + 26, X0 + 34, Y0 + 34)) == (None, None)
        assert scene.heights_in(WorldBox(X0 + 2, Y0 + 2, X0 + 12, Y0 + 12)) == (12.0, 12.0)
    with rasterio.open(tmp_path / "town" / "bev.tif") as photo:
        mask = photo.dataset_mask()
        row, column = photo.index(X0 + 30, Y0 + 30)
        assert mask[row, column] == 0
        row, column = photo.index(X0 + 10, Y0 + 10)
        assert mask[row - 8 : row + 8, column - 8 : column + 8].all()  # gaps between points are filled


def test_equal_points_are_kept_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    xyz = np.column_stack((rng.uniform(0, 30, 5000) + X0, rng.uniform(0, 30, 5000) + Y0, rng.uniform(10, 11, 5000)))
    path = write_las(tmp_path / "c.las", np.concatenate([xyz, xyz[:700]]))
    _, remarks = import_scene(tmp_path / "town", ImportOptions(clouds=(path,)))
    assert any(remark.startswith("700 points were there twice") for remark in remarks)
    points = Scene(tmp_path / "town").points
    assert points is not None and points.count == 5000


def test_clouds_in_different_crs_meet(tmp_path: Path) -> None:
    from wayfix.geo.crs import conversion

    rng = np.random.default_rng(0)
    xyz = np.column_stack((rng.uniform(0, 60, 20_000) + X0, rng.uniform(0, 60, 20_000) + Y0, np.full(20_000, 12.0)))
    west, east = xyz[xyz[:, 0] < X0 + 30], xyz[xyz[:, 0] >= X0 + 30]
    x, y = conversion(CRS.from_epsg(32631), CRS.from_epsg(32632))(east[:, 0], east[:, 1])
    moved = np.column_stack((x, y, east[:, 2]))
    paths = (write_las(tmp_path / "w.las", west), write_las(tmp_path / "e.las", moved, (30, 30, 200), 32632))
    manifest, _ = import_scene(tmp_path / "town", ImportOptions(clouds=paths))
    assert manifest.extent.max_x - manifest.extent.min_x < 70  # the second's bounds are turned by the convergence
    with Scene(tmp_path / "town") as scene:
        left, right = scene.bev.read(0, 40, 40, 8, 8), scene.bev.read(0, scene.bev.levels[0].width - 40, 40, 8, 8)
    assert left[..., 0].mean() > 150 > left[..., 2].mean()
    assert right[..., 2].mean() > 150 > right[..., 0].mean()


def test_bbox_and_area_limit_what_is_taken(tmp_path: Path, clouds: dict[str, Path]) -> None:
    bbox = (X0 + 10, Y0 + 20, X0 + 50, Y0 + 70)
    manifest, remarks = import_scene(tmp_path / "a", ImportOptions(clouds=(clouds["ground"],), bbox=bbox))
    assert (manifest.extent.min_x, manifest.extent.min_y) == (X0 + 10, Y0 + 20)
    assert (manifest.extent.max_x, manifest.extent.max_y) == (X0 + 50, Y0 + 70)
    assert any("lie outside the scene" in remark for remark in remarks)
    from wayfix.geo.frame import SceneFrame

    frame = SceneFrame(CRS.from_epsg(32631), X0, Y0, 0.0)
    ring = [frame.lonlat(X0 + x, Y0 + y) for x, y in ((10, 10), (80, 10), (10, 80), (10, 10))]
    area = tmp_path / "area.geojson"
    area.write_text(json.dumps({"type": "Polygon", "coordinates": [ring]}))
    import_scene(tmp_path / "b", ImportOptions(clouds=(clouds["ground"],), area=area))
    with Scene(tmp_path / "b") as scene:
        assert scene.heights_in(WorldBox(X0 + 70, Y0 + 70, X0 + 75, Y0 + 75)) == (None, None)
        assert scene.points is not None
        assert len(scene.points.read(WorldBox(X0 + 60, Y0 + 60, X0 + 80, Y0 + 80)).classes) == 0
    with pytest.raises(errors.NoOverlap):
        import_scene(tmp_path / "c", ImportOptions(clouds=(clouds["ground"],), bbox=(0, 0, 10, 10)))
    assert not (tmp_path / "c").exists()


def photo_like(path: Path, scene: Scene, shift_px: tuple[int, int] = (0, 0)) -> Path:
    """The scene's own photo as a GeoTIFF, moved by whole pixels."""
    level = scene.bev.levels[0]
    pixels = scene.bev.read(0, 0, 0, level.width, level.height)
    gsd, e = scene.manifest.gsd_m, scene.extent
    transform = Affine(gsd, 0, e.min_x + shift_px[0] * gsd, 0, -gsd, e.max_y + shift_px[1] * gsd)
    profile = {"driver": "GTiff", "width": level.width, "height": level.height, "count": 3, "dtype": "uint8"}
    with rasterio.open(path, "w", crs="EPSG:32631", transform=transform, **profile) as out:
        out.write(pixels.transpose(2, 0, 1))
    return path


def test_a_shift_between_photo_and_cloud_is_measured(tmp_path: Path, clouds: dict[str, Path]) -> None:
    import_scene(tmp_path / "town", ImportOptions(clouds=(clouds["ground"],)))
    with Scene(tmp_path / "town") as scene:
        straight = photo_like(tmp_path / "straight.tif", scene)
        moved = photo_like(tmp_path / "moved.tif", scene, (4, 3))
    manifest, remarks = import_scene(tmp_path / "s", ImportOptions(photo=straight, clouds=(clouds["ground"],)))
    assert manifest.registration is not None and manifest.registration.pixels < 0.3
    assert not any("warning" in remark for remark in remarks)
    manifest, remarks = import_scene(tmp_path / "m", ImportOptions(photo=moved, clouds=(clouds["ground"],)))
    assert manifest.registration is not None
    assert manifest.registration.east_m == pytest.approx(4 * 0.125, abs=0.06)
    assert manifest.registration.north_m == pytest.approx(3 * 0.125, abs=0.06)
    assert any(remark.startswith("warning: the cloud lies 5.") for remark in remarks)


def test_photo_wins_over_cloud_and_the_cloud_fills_its_gaps(tmp_path: Path, clouds: dict[str, Path]) -> None:
    pixels = np.full((4, 400, 400), 255, np.uint8)
    pixels[:3] = np.array([20, 200, 20], np.uint8)[:, None, None]
    pixels[3, :, 200:] = 0  # the east half is transparent
    photo = tmp_path / "photo.tif"
    profile = {"driver": "GTiff", "width": 400, "height": 400, "count": 4, "dtype": "uint8", "crs": "EPSG:32631"}
    with rasterio.open(photo, "w", transform=Affine(0.2, 0, X0, 0, -0.2, Y0 + 80), **profile) as out:
        out.write(pixels)
    import_scene(tmp_path / "town", ImportOptions(photo=photo, clouds=(clouds["ground"],)))
    with Scene(tmp_path / "town") as scene:
        assert scene.manifest.gsd_m == pytest.approx(0.2)
        west = scene.bev.read(0, 20, 20, 150, 150).reshape(-1, 3).mean(axis=0)
        assert west[1] > 180 and west[0] < 40
        roof = scene.bev.read(0, round(55 / 0.2), 400 - round(8 / 0.2), 10, 10).reshape(-1, 3).mean(axis=0)
        assert roof[0] > roof[1] + 40


def test_the_finer_heights_win_and_the_coarser_fill(tmp_path: Path, clouds: dict[str, Path]) -> None:
    coarse = tmp_path / "coarse.tif"
    profile = {"driver": "GTiff", "width": 60, "height": 60, "count": 1, "dtype": "float32", "crs": "EPSG:32631"}
    with rasterio.open(coarse, "w", transform=Affine(2, 0, X0, 0, -2, Y0 + 120), **profile) as out:
        out.write(np.full((1, 60, 60), 99, np.float32))
    photo = tmp_path / "photo.tif"
    profile = {"driver": "GTiff", "width": 240, "height": 240, "count": 3, "dtype": "uint8", "crs": "EPSG:32631"}
    with rasterio.open(photo, "w", transform=Affine(0.5, 0, X0, 0, -0.5, Y0 + 120), **profile) as out:
        out.write(np.full((3, 240, 240), 90, np.uint8))
    import_scene(tmp_path / "town", ImportOptions(photo=photo, clouds=(clouds["ground"],), dsm=(coarse,)))
    with Scene(tmp_path / "town") as scene:
        assert scene.heights_in(WorldBox(X0 + 100, Y0 + 100, X0 + 110, Y0 + 110))[1] == 99.0
        inside = scene.heights_in(WorldBox(X0 + 2, Y0 + 2, X0 + 10, Y0 + 10))[1]
        assert inside is not None and inside < 40


def test_a_dry_run_says_what_would_be_made_and_writes_nothing(
    tmp_path: Path, clouds: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "town"
    assert main(["scene", "import", str(target), "--cloud", str(clouds["ground"]), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["points"] == 300_000 and plan["gsd_m"] == 0.125 and plan["crs"] == "EPSG:32631"
    assert list(tmp_path.iterdir()) == []
    import_scene(target, ImportOptions(clouds=(clouds["ground"],)))
    made = sum(p.stat().st_size for p in target.rglob("*") if p.is_file()) / 1e6
    assert made / 3 < plan["megabytes"] < made * 3
    assert main(["scene", "import", str(target), "--cloud", str(clouds["ground"]), "--dry-run"]) == 0
    assert "points      300000" in capsys.readouterr().out


def test_neither_photo_nor_cloud_is_no_import(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidOption, match="--photo or --cloud"):
        import_scene(tmp_path / "town", ImportOptions())


@pytest.mark.slow
def test_an_import_killed_at_any_instant_ends_with_the_same_bytes(tmp_path: Path) -> None:
    """30 random instants: each time the next run finishes, and the scene equals an undisturbed one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["wayfix.scene.importer"])
    small = tmp_path / "small.laz"
    write_cloud(small, CloudRecipe(points=60_000), quiet=True)
    import_scene(tmp_path / "first", ImportOptions(clouds=(small,)))
    with Scene(tmp_path / "first") as scene:
        photo = photo_like(tmp_path / "photo.tif", scene)
    options = ImportOptions(photo=photo, clouds=(small,))
    target = tmp_path / "town"

    def run() -> tuple[multiprocessing.process.BaseProcess, float]:
        process = context.Process(target=import_scene, args=(target, options))
        process.start()
        return process, time.monotonic()

    process, started = run()
    process.join(120)
    whole = time.monotonic() - started
    expected = content(target)
    rng = random.Random(7)
    killed = 0
    for _ in range(30):
        _remove(target)
        process, _ = run()
        process.join(rng.uniform(0.02, whole))
        if process.is_alive():
            process.kill()
            killed += 1
        process.join(120)
        process, _ = run()
        process.join(120)
        assert process.exitcode == 0
        assert content(target) == expected
    assert killed >= 20


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder)


def test_another_import_does_not_take_up_what_one_left(tmp_path: Path, clouds: dict[str, Path]) -> None:
    left = tmp_path / ".town.importing"
    left.mkdir()
    (left / "journal.json").write_text(json.dumps({"fingerprint": "of another", "layers": {"bev": {}}}))
    options = ImportOptions(clouds=(clouds["ground"],))
    import_scene(tmp_path / "town", options)
    assert Scene(tmp_path / "town").problems() == []
    again, _ = import_scene(tmp_path / "other", dataclasses.replace(options, scene_id="town"))
    assert content(tmp_path / "other").keys() == content(tmp_path / "town").keys()
    assert again.id == "town"


# ---- bad input: each its named error, and nothing half-made


def spread(count: int = 4000) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.column_stack((rng.uniform(0, 30, count) + X0, rng.uniform(0, 30, count) + Y0, rng.uniform(9, 12, count)))


def truncated(folder: Path) -> Path:
    path = write_las(folder / "bad.laz", spread(80_000))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    return path


def miscounted(folder: Path) -> Path:
    path = write_las(folder / "bad.las", spread())
    data = bytearray(path.read_bytes())
    data[247:255] = (9000).to_bytes(8, "little")  # LAS 1.4: number of point records
    path.write_bytes(bytes(data))
    return path


def colourless(folder: Path) -> Path:
    return write_las(folder / "bad.las", spread(), rgb=(0, 0, 0))


def far_away(folder: Path) -> Path:
    xyz = spread()
    xyz[17, 0] += 1e6
    return write_las(folder / "bad.las", xyz)


def nowhere(folder: Path) -> Path:
    path = folder / "bad.las"
    data = laspy.LasData(laspy.LasHeader(point_format=3, version="1.2"))
    data.x, data.y, data.z = spread().T
    data.red = np.full(4000, 900, np.uint16)
    data.write(path)
    return path


def nan_heights(folder: Path) -> Path:
    from plyfile import PlyData, PlyElement

    points = np.zeros(4000, [("x", "f8"), ("y", "f8"), ("z", "f8")])
    points["x"], points["y"], points["z"] = spread().T
    points["z"][11] = np.nan
    PlyData([PlyElement.describe(points, "vertex")]).write(str(folder / "bad.ply"))
    return folder / "bad.ply"


def in_degrees(folder: Path) -> Path:
    xyz = spread() - (X0, Y0, 0)
    return write_las(folder / "bad.las", xyz * (1e-4, 1e-4, 1) + (3.0, 51.0, 0), epsg=4326)


@pytest.mark.parametrize(
    ("make", "error", "advice"),
    [
        (truncated, errors.UnreadableSource, "truncated"),
        (miscounted, errors.UnreadableSource, "9000"),
        (colourless, errors.InvalidPoints, "--color"),
        (far_away, errors.InvalidPoints, "stray points"),
        (nowhere, errors.MissingCrs, "--crs"),
        (nan_heights, errors.InvalidPoints, ""),
        (in_degrees, errors.GeographicCrs, ""),
    ],
)
def test_a_bad_cloud_is_refused_by_name_and_leaves_nothing(
    tmp_path: Path, make: object, error: type[errors.WayfixError], advice: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    path = make(source)  # type: ignore[operator]
    crs = "EPSG:32631" if path.suffix == ".ply" else None
    with pytest.raises(error) as caught:
        import_scene(tmp_path / "town", ImportOptions(clouds=(path,), crs=crs))
    assert advice in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_heights_in_two_datums_are_refused(tmp_path: Path, clouds: dict[str, Path]) -> None:
    dsm = tmp_path / "dsm.tif"
    profile = {"driver": "GTiff", "width": 60, "height": 60, "count": 1, "dtype": "float32"}
    with rasterio.open(dsm, "w", crs="EPSG:32631+5709", transform=Affine(1, 0, X0, 0, -1, Y0 + 60), **profile) as out:
        out.write(np.full((1, 60, 60), 9, np.float32))
    options = ImportOptions(clouds=(clouds["ground"],), dsm=(dsm,), vertical_datum="ellipsoid")
    with pytest.raises(errors.InvalidCrs, match="NAP height, ellipsoid"):
        import_scene(tmp_path / "town", options)


def test_an_empty_map_is_refused(tmp_path: Path, clouds: dict[str, Path]) -> None:
    osm = tmp_path / "empty.osm"
    osm.write_text('<?xml version="1.0"?><osm version="0.6"></osm>')
    with pytest.raises(errors.InvalidMap):
        import_scene(tmp_path / "town", ImportOptions(clouds=(clouds["ground"],), osm=osm))
    assert not (tmp_path / "town").exists()
