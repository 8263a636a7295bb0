"""The point store: what is written comes back, cropped, thinned evenly, and checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from wayfix.errors import InvalidHeights, SceneCorrupt, SceneNotFound, StorageFailed, UnreadableSource
from wayfix.geo.boxes import WorldBox
from wayfix.scene.point_writer import write_points
from wayfix.scene.points import INDEX, POINT, Points, PointStore

EAST, NORTH = 500_000.0, 5_700_000.0
Cloud = tuple[NDArray[np.float64], NDArray[np.uint8], NDArray[np.uint8]]


def cloud(n: int = 20_000, side: float = 100.0, seed: int = 0) -> Cloud:
    rng = np.random.default_rng(seed)
    xyz = rng.random((n, 3)) * (side, side, 30.0) + (EAST - 50, NORTH - 50, 120.0)
    return xyz, rng.integers(0, 256, (n, 3), np.uint8), rng.integers(0, 19, n).astype(np.uint8)


def stored(folder: Path, points: Cloud) -> PointStore:
    write_points(folder, *points)
    return PointStore.open(folder)


def world(points: Points) -> NDArray[np.float64]:
    return points.xyz + points.origin


def test_a_record_is_16_bytes_and_an_index_row_holds_its_bounds() -> None:
    assert POINT.itemsize == 16
    assert {"ix", "iy", "offset", "count", "z0", "crc32", "low", "high"} == set(INDEX.names or ())


def test_everything_written_is_read_back_to_float32_accuracy(tmp_path: Path) -> None:
    xyz, _, classes = cloud()
    number = np.arange(len(xyz), dtype=np.uint32)
    rgb = number.view(np.uint8).reshape(-1, 4)[:, :3]  # each point's colour is its number
    store = stored(tmp_path, (xyz, rgb, classes))
    got = store.read(store.bounds)
    assert got.xyz.dtype == np.float32 and got.origin.dtype == np.float64
    back = got.rgb.astype(int) @ (1, 256, 65536)
    np.testing.assert_array_equal(np.sort(back), number)
    np.testing.assert_allclose(world(got), xyz[back], atol=2e-5)
    np.testing.assert_array_equal(got.classes, classes[back])


def test_count_bounds_and_density_describe_the_points(tmp_path: Path) -> None:
    xyz, rgb, classes = cloud(40_000)
    store = stored(tmp_path, (xyz, rgb, classes))
    b = store.bounds
    assert store.count == 40_000
    assert b.min_z is not None and b.max_z is not None
    np.testing.assert_allclose([b.min_x, b.min_y, b.min_z], xyz.min(axis=0), atol=1e-5)
    np.testing.assert_allclose([b.max_x, b.max_y, b.max_z], xyz.max(axis=0), atol=1e-5)
    assert store.density == pytest.approx(4.0, rel=0.1)


def test_negative_coordinates_fall_into_the_right_tiles(tmp_path: Path) -> None:
    xyz = np.array([[-0.5, -0.5, -3.0], [0.5, 0.5, -2.0], [-20.0, 19.99, 5.0]])
    store = stored(tmp_path, (xyz, np.zeros((3, 3), np.uint8), np.zeros(3, np.uint8)))
    got = store.read(WorldBox(-1, -1, 1, 1))
    np.testing.assert_allclose(sorted(world(got).tolist()), xyz[:2], atol=1e-6)
    assert len(store.read(WorldBox(-20, 19, -19, 20)).xyz) == 1


def test_points_outside_the_box_are_dropped_unless_whole_tiles_are_asked_for(tmp_path: Path) -> None:
    xyz, rgb, classes = cloud()
    store = stored(tmp_path, (xyz, rgb, classes))
    box = WorldBox(EAST + 3, NORTH + 3, EAST + 13, NORTH + 13)
    inside = (np.abs(xyz[:, :2] - (EAST + 8, NORTH + 8)) <= 5).all(axis=1).sum()
    tile = ((xyz[:, :2] >= (EAST, NORTH)) & (xyz[:, :2] < (EAST + 20, NORTH + 20))).all(axis=1).sum()
    assert len(store.read(box).xyz) == inside
    assert len(store.read(box, whole_tiles=True).xyz) == tile


def test_known_heights_of_the_box_bound_too(tmp_path: Path) -> None:
    xyz, rgb, classes = cloud()
    store = stored(tmp_path, (xyz, rgb, classes))
    b = store.bounds
    got = store.read(WorldBox(b.min_x, b.min_y, b.max_x, b.max_y, 125.0, 130.0))
    assert len(got.xyz) == ((xyz[:, 2] >= 125) & (xyz[:, 2] <= 130)).sum()


def test_a_box_without_points_reads_empty(tmp_path: Path) -> None:
    got = stored(tmp_path, cloud()).read(WorldBox(0, 0, 10, 10))
    assert got.xyz.shape == (0, 3) and got.rgb.shape == (0, 3) and got.classes.shape == (0,)


@pytest.mark.parametrize("limit", [0, 1, 10, 500, 3000, 10**9])
@pytest.mark.parametrize("whole", [False, True])
def test_max_points_is_never_exceeded_and_nearly_reached(tmp_path: Path, limit: int, whole: bool) -> None:
    store = stored(tmp_path, cloud())
    box = WorldBox(EAST - 33, NORTH - 33, EAST + 33, NORTH + 33)
    available = len(store.read(box, whole_tiles=whole).xyz)
    got = len(store.read(box, limit, whole).xyz)
    assert got <= limit
    if limit >= 500:
        assert got >= 0.9 * min(limit, available)


def test_fewer_points_than_tiles_can_be_asked_for(tmp_path: Path) -> None:
    store = stored(tmp_path, cloud())
    assert len(store.read(store.bounds, 7).xyz) == 7


@pytest.mark.parametrize("fraction", [0.002, 0.01, 0.04, 0.2])
def test_a_prefix_covers_the_ground_evenly_even_where_the_survey_is_uneven(tmp_path: Path, fraction: float) -> None:
    rng = np.random.default_rng(3)
    xy = np.concatenate([rng.random((15_000, 2)) * (10, 20), rng.random((1_500, 2)) * (10, 20) + (10, 0)])
    xyz = np.column_stack([xy, np.zeros(len(xy))])
    store = stored(tmp_path, (xyz, np.zeros((len(xy), 3), np.uint8), np.zeros(len(xy), np.uint8)))
    few = store.read(store.bounds, round(fraction * len(xy)))
    dense = (few.xyz[:, 0] < 10).mean()
    # The dense half has 10 times the points; a thinned view shows both halves until the sparse one is used up.
    assert dense < (0.65 if fraction <= 0.04 else 0.85)
    cells = np.unique((few.xyz[:, :2] / 5).astype(int), axis=0)
    assert len(cells) >= min(16, 0.8 * len(few.xyz))


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_points(tmp_path / name, *cloud())
    for file in ("tiles.bin", "index.npy"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_damaged_tile_is_refused_when_read_and_the_others_still_serve(tmp_path: Path) -> None:
    write_points(tmp_path, *cloud())
    index = np.load(tmp_path / "index.npy")
    data = bytearray((tmp_path / "tiles.bin").read_bytes())
    row = index[7]
    data[int(row["offset"]) * 16 + 5] ^= 1
    (tmp_path / "tiles.bin").write_bytes(data)
    store = PointStore.open(tmp_path)
    x, y = row["ix"] * 20 + 10, row["iy"] * 20 + 10
    with pytest.raises(SceneCorrupt, match=rf"tile \({row['ix']}, {row['iy']}\).*tiles\.bin.*wayfix scene check"):
        store.read(WorldBox(x - 1, y - 1, x + 1, y + 1))
    with pytest.raises(SceneCorrupt):
        store.read(WorldBox(x - 1, y - 1, x + 1, y + 1))
    assert len(store.read(WorldBox(x + 19, y - 1, x + 21, y + 1)).xyz)
    assert len(list(store.check())) == 1


def test_check_of_a_sound_store_finds_nothing(tmp_path: Path) -> None:
    assert list(stored(tmp_path, cloud()).check()) == []


def test_a_store_that_does_not_fit_together_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(SceneNotFound):
        PointStore.open(tmp_path / "none")
    with pytest.raises(SceneCorrupt, match=r"index\.npy is missing"):
        PointStore.open(tmp_path)
    write_points(tmp_path, *cloud(100))
    tiles, table = (tmp_path / "tiles.bin").read_bytes(), (tmp_path / "index.npy").read_bytes()
    for bad_tiles in (tiles[:-16], tiles[:-3], b""):
        (tmp_path / "tiles.bin").write_bytes(bad_tiles)
        with pytest.raises(SceneCorrupt, match="bytes"):
            PointStore.open(tmp_path)
    (tmp_path / "tiles.bin").write_bytes(tiles)
    for bad_table in (b"", table[:40], table[:-7], b"junk" * 40):
        (tmp_path / "index.npy").write_bytes(bad_table)
        with pytest.raises(SceneCorrupt):
            PointStore.open(tmp_path)


def test_bad_input_is_named_and_writes_nothing(tmp_path: Path) -> None:
    xyz, rgb, classes = cloud(10)
    nan_z, nan_x, far = xyz.copy(), xyz.copy(), xyz.copy()
    nan_z[3, 2], nan_x[3, 0], far[3, 1] = np.nan, np.inf, 1e300
    with pytest.raises(InvalidHeights):
        write_points(tmp_path / "p", nan_z, rgb, classes)
    for bad in (
        (nan_x, rgb, classes),
        (far, rgb, classes),
        (xyz[:0], rgb[:0], classes[:0]),
        (xyz[:, :2], rgb, classes),
        (xyz, rgb[:9], classes),
        (xyz, rgb.astype(np.float32), classes),
        (xyz, rgb, classes[:9]),
    ):
        with pytest.raises(UnreadableSource):
            write_points(tmp_path / "p", *bad)  # type: ignore[arg-type]
    assert not (tmp_path / "p").exists()


def test_a_place_that_cannot_be_written_is_a_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed):
        write_points(tmp_path / "file", *cloud(10))
