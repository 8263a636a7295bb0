"""PLY: what comes out is what plyfile wrote, in any encoding; what cannot be used has a named error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import DTypeLike, NDArray
from plyfile import PlyData, PlyElement

from wayfix.errors import InvalidHeights, InvalidPoints, MissingCrs, UnreadableSource, WayfixError
from wayfix.scene.readers.cloud import CloudSource, open_cloud

CRS = "EPSG:32631"
ENCODINGS: dict[str, dict[str, Any]] = {
    "little": {"byte_order": "<"},
    "big": {"byte_order": ">"},
    "ascii": {"text": True},
}
RGB = ("red", "green", "blue")


def vertices(count: int = 300, seed: int = 0, **fields: DTypeLike) -> NDArray[np.void]:
    """Double coordinates on 90 x 90 x 50 m, and random values in further fields: 0..1, or anything of whole types."""
    rng = np.random.default_rng(seed)
    points = np.zeros(count, [("x", "f8"), ("y", "f8"), ("z", "f8"), *fields.items()])
    points["x"], points["y"] = 500_000 + 90 * rng.random(count), 5_700_000 + 90 * rng.random(count)
    points["z"] = 10 + 50 * rng.random(count)
    for name in fields:
        kind = points.dtype[name]
        whole = kind.kind in "ui"
        points[name] = rng.integers(0, np.iinfo(kind).max, count, kind, True) if whole else rng.random(count)
    return points


def save(path: Path, points: NDArray[np.void], encoding: str = "little", *more: PlyElement) -> Path:
    PlyData([PlyElement.describe(points, "vertex"), *more], **ENCODINGS[encoding]).write(path)
    return path


def read_all(source: CloudSource, start: int = 0, size: int = 77) -> tuple[NDArray, NDArray, NDArray]:
    chunks = list(source.chunks(start, size))
    assert all(0 < len(c.xyz) <= size for c in chunks)
    rgb = [np.full((len(c.xyz), 3), 255, np.uint8) if c.rgb is None else c.rgb for c in chunks]
    return np.concatenate([c.xyz for c in chunks]), np.concatenate(rgb), np.concatenate([c.classes for c in chunks])


def xyz_of(points: NDArray[np.void]) -> NDArray[np.float64]:
    return np.stack([points[axis] for axis in "xyz"], axis=1).astype(np.float64)


def rgb_of(points: NDArray[np.void], names: tuple[str, ...] = RGB) -> NDArray:
    return np.stack([points[name] for name in names], axis=1)


def text(path: Path, rows: str, count: int | str = 2, properties: str = "x y z", form: str = "ascii 1.0") -> Path:
    lines = [f"property double {name}" for name in properties.split()]
    path.write_text("\n".join(["ply", f"format {form}", f"element vertex {count}", *lines, "end_header", rows]))
    return path


# ---- what comes out


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_points_colors_and_classes(tmp_path: Path, encoding: str) -> None:
    points = vertices(red="u1", green="u1", blue="u1", nx="f4", classification="u1", label="i4")
    source = open_cloud(save(tmp_path / "a.ply", points, encoding), CRS)
    assert (source.count, source.color, source.classified) == (300, "rgb8", bool((points["classification"] == 2).any()))
    xyz, rgb, classes = read_all(source)
    np.testing.assert_allclose(xyz, xyz_of(points), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(rgb, rgb_of(points))
    np.testing.assert_array_equal(classes, points["classification"])
    low, high = xyz.min(axis=0), xyz.max(axis=0)
    box = source.bounds
    np.testing.assert_allclose([[box.min_x, box.min_y, box.min_z], [box.max_x, box.max_y, box.max_z]], [low, high])  # type: ignore[arg-type]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bits_of_colors(tmp_path: Path, encoding: str) -> None:
    points = vertices(red="u2", green="u2", blue="u2")
    source = open_cloud(save(tmp_path / "16.ply", points, encoding), CRS)
    assert source.color == "rgb16"
    np.testing.assert_array_equal(read_all(source)[1], rgb_of(points) >> 8)
    names = ("diffuse_red", "diffuse_green", "diffuse_blue")
    points = vertices(diffuse_red="f4", diffuse_green="f4", diffuse_blue="f8")
    source = open_cloud(save(tmp_path / "float.ply", points, encoding), CRS)
    assert source.color == "rgb8"
    np.testing.assert_allclose(read_all(source)[1], rgb_of(points, names) * 255, atol=0.51)


def test_other_names(tmp_path: Path) -> None:
    points = vertices(r="u1", g="u1", b="u1", scalar_Classification="f4", scalar_Intensity="f4")
    points["scalar_Classification"] = 2
    path = save(tmp_path / "a.ply", points)
    source = open_cloud(path, CRS)
    assert source.color == "rgb8" and source.classified
    _, rgb, classes = read_all(source)
    np.testing.assert_array_equal(rgb, rgb_of(points, ("r", "g", "b")))
    assert (classes == 2).all()
    grey = read_all(open_cloud(path, CRS, color="intensity"))[1][:, 0].astype(int)
    assert grey.min() == 0 and grey.max() == 255
    assert (np.diff(grey[np.argsort(points["scalar_Intensity"])]) >= 0).all()


def test_nothing_but_coordinates(tmp_path: Path) -> None:
    source = open_cloud(save(tmp_path / "a.ply", vertices(label="u1")), CRS)
    chunk = next(source.chunks())
    assert (source.color, source.classified, chunk.rgb) == ("none", False, None)
    assert (chunk.classes == 0).all()


def test_intensities_that_are_not_numbers_are_black(tmp_path: Path) -> None:
    points = vertices(intensity="f4")
    points["intensity"][5] = np.nan
    source = open_cloud(save(tmp_path / "a.ply", points), CRS)
    assert source.color == "intensity" and (read_all(source)[1][5] == 0).all()


def test_units(tmp_path: Path) -> None:
    points = vertices()
    source = open_cloud(save(tmp_path / "a.ply", points), "EPSG:2994", "us-ft")
    np.testing.assert_allclose(read_all(source)[0], xyz_of(points) * (0.3048, 0.3048, 1200 / 3937))
    with pytest.raises(InvalidHeights, match="--height-unit"):
        open_cloud(source.path, "EPSG:2994")
    with pytest.raises(MissingCrs, match="--crs"):
        open_cloud(source.path)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_other_elements_are_passed_over(tmp_path: Path, encoding: str) -> None:
    points, path = vertices(), tmp_path / "a.ply"
    faces = np.zeros(4, [("vertex_indices", "i4", (3,))])
    camera = np.ones(2, [("view_px", "f4"), ("view_py", "f4")])
    elements = [
        PlyElement.describe(camera, "camera"),
        PlyElement.describe(points, "vertex"),
        PlyElement.describe(faces, "face"),
    ]
    PlyData(elements, comments=["made by a test"], **ENCODINGS[encoding]).write(path)
    np.testing.assert_allclose(read_all(open_cloud(path, CRS))[0], xyz_of(points), rtol=0, atol=1e-6)


def test_lines_may_end_the_windows_way(tmp_path: Path) -> None:
    path = tmp_path / "a.ply"
    text(path, "1 2 3\n4 5 6\n\n")
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    np.testing.assert_array_equal(read_all(open_cloud(path, CRS))[0], [[1, 2, 3], [4, 5, 6]])


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[NDArray[np.float64], list[CloudSource]]:
    """More vertices than an ascii file has marks for in one block, in each encoding."""
    folder, points = tmp_path_factory.mktemp("many"), vertices(70_000)
    points["x"], points["y"], points["z"] = np.arange(70_000), 1, 2
    return xyz_of(points), [open_cloud(save(folder / f"{e}.ply", points, e), CRS) for e in ENCODINGS]


@settings(max_examples=30)
@given(st.integers(0, 70_100), st.integers(5_000, 80_000), st.integers(0, 2))
def test_chunks_resume_anywhere(
    many: tuple[NDArray[np.float64], list[CloudSource]], start: int, size: int, which: int
) -> None:
    points, sources = many
    got = [chunk.xyz for chunk in sources[which].chunks(start, size)]
    assert all(len(xyz) <= size for xyz in got)
    np.testing.assert_array_equal(np.concatenate([np.empty((0, 3)), *got]), points[start:])


# ---- files that cannot be used


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_coordinates_that_are_no_numbers(tmp_path: Path, encoding: str, value: float) -> None:
    points = vertices()
    points["z"][250] = value
    with pytest.raises(InvalidPoints, match="NaN or infinite"):
        open_cloud(save(tmp_path / "a.ply", points, encoding), CRS)


def test_stray_point_far_away(tmp_path: Path) -> None:
    points = vertices()
    points["x"][1] = 1e9
    with pytest.raises(InvalidPoints, match=r"along x.*at most 200 km"):
        open_cloud(save(tmp_path / "a.ply", points), CRS)


def test_coordinates_too_coarse(tmp_path: Path) -> None:
    fine = vertices()
    coarse = fine.astype([("x", "f4"), ("y", "f4"), ("z", "f4")])
    with pytest.raises(InvalidPoints, match=r"neighbouring numbers are 0\.5 apart"):
        open_cloud(save(tmp_path / "a.ply", coarse), CRS)
    coarse["y"] -= 5_700_000
    assert open_cloud(save(tmp_path / "a.ply", coarse), CRS).count == 300


def test_no_points(tmp_path: Path) -> None:
    for encoding in ENCODINGS:
        with pytest.raises(InvalidPoints, match="holds no points"):
            open_cloud(save(tmp_path / "a.ply", vertices(0), encoding), CRS)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 0.999])
def test_truncated(tmp_path: Path, encoding: str, share: float) -> None:
    path = save(tmp_path / "a.ply", vertices(2000), encoding)
    data = path.read_bytes()
    path.write_bytes(data[: max(int(share * len(data)), 4)])
    with pytest.raises(UnreadableSource, match=r"a\.ply"):
        open_cloud(path, CRS)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("count", [0, 1, 299, 301, 10**12])
def test_header_count_does_not_match(tmp_path: Path, encoding: str, count: int) -> None:
    path = save(tmp_path / "a.ply", vertices(), encoding)
    path.write_bytes(path.read_bytes().replace(b"vertex 300", f"vertex {count}".encode()))
    with pytest.raises(UnreadableSource, match="its header says"):
        open_cloud(path, CRS)


def test_file_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    for encoding in ENCODINGS:
        path = save(tmp_path / "a.ply", vertices(), encoding)
        source = open_cloud(path, CRS)
        path.write_bytes(path.read_bytes()[:-2000])
        with pytest.raises(UnreadableSource, match=r"truncated|not one point"):
            read_all(source)
        path.unlink()
        with pytest.raises(UnreadableSource, match="cannot be read"):
            read_all(source)


@pytest.mark.parametrize("rows", ["1 2 3\n4 5\n", "1 2 3\n4 5 six\n", "1 2 3\n4 5 6 7\n", "1 2 3\n\n4 5 6\n"])
def test_lines_that_are_no_points(tmp_path: Path, rows: str) -> None:
    with pytest.raises(UnreadableSource, match=r"not one point \(x y z\)|its header says"):
        open_cloud(text(tmp_path / "a.ply", rows), CRS)


def test_headers_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.ply"
    for form, count in (("ascii 2.0", "2"), ("middle_endian 1.0", "2"), ("ascii 1.0", "two"), ("ascii 1.0", "-2")):
        with pytest.raises(UnreadableSource, match="no PLY header"):
            open_cloud(text(path, "1 2 3\n4 5 6\n", count, form=form), CRS)
    with pytest.raises(UnreadableSource, match="lack z"):
        open_cloud(text(path, "1 2\n4 5\n", properties="x y"), CRS)
    with pytest.raises(UnreadableSource, match="twice"):
        open_cloud(text(path, "1 2 3 4\n4 5 6 7\n", properties="x y z X"), CRS)
    path.write_bytes(b"ply\nformat ascii 1.0\nelement face 0\nproperty list uchar int a\nend_header\n")
    with pytest.raises(UnreadableSource, match="no element `vertex`; it has: face"):
        open_cloud(path, CRS)
    path.write_bytes(b"ply\nformat ascii 1.0\nelement vertex 1\nproperty list uchar int a\nend_header\n1 2\n")
    with pytest.raises(UnreadableSource, match="has lists"):
        open_cloud(path, CRS)


def test_colors_that_are_none(tmp_path: Path) -> None:
    points = vertices(red="f4", green="f4", blue="f4")
    points["green"][7] = 200
    with pytest.raises(InvalidPoints, match=r"green of type float32 .* expected uchar, ushort, or float from 0 to 1"):
        open_cloud(save(tmp_path / "a.ply", points), CRS)
    with pytest.raises(InvalidPoints, match="red of type int32"):
        open_cloud(save(tmp_path / "a.ply", vertices(red="i4", green="i4", blue="i4")), CRS)
    path = save(tmp_path / "a.ply", vertices(red="u1", green="u1", blue="u1"))
    with pytest.raises(InvalidPoints, match="8 bits"):
        open_cloud(path, CRS, color="rgb16")


@pytest.mark.parametrize("value", [-1, 256, 2.5, np.nan])
def test_classes_that_are_none(tmp_path: Path, value: float) -> None:
    points = vertices(classification="f4")
    points["classification"] = 2
    points["classification"][9] = value
    with pytest.raises(InvalidPoints, match="ASPRS"):
        open_cloud(save(tmp_path / "a.ply", points), CRS)


@given(st.data())
def test_damaged_bytes_give_named_errors_only(originals: list[Path], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(originals))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.integers(0, 255))
    broken = path.with_name("broken.ply")
    broken.write_bytes(content)
    try:
        source = open_cloud(broken, CRS)
        assert sum(len(chunk.xyz) for chunk in source.chunks()) == source.count
    except WayfixError as error:
        assert str(error)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("originals")
    points = vertices(20, red="u1", green="u1", blue="u1", intensity="f4", scalar_Classification="f4")
    points["scalar_Classification"] = 2
    return [save(folder / f"{encoding}.ply", points, encoding) for encoding in ENCODINGS]
