"""LAS, LAZ and COPC: what comes out is what laspy wrote, in metres; what cannot be used has a named error."""

from __future__ import annotations

import struct
from pathlib import Path

import laspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laspy.vlrs.known import WktCoordinateSystemVlr
from laspy.vlrs.vlr import VLR
from laspy.vlrs.vlrlist import VLRList
from numpy.typing import NDArray
from pyproj import CRS

from wayfix.errors import (
    GeographicCrs,
    InvalidCrs,
    InvalidHeights,
    InvalidOption,
    InvalidPoints,
    MissingCrs,
    UnreadableSource,
    WayfixError,
)
from wayfix.geo.crs import WGS84, conversion
from wayfix.scene.readers.cloud import CloudSource, open_cloud
from wayfix.scene.readers.las import LasFile

DATA = Path(__file__).parents[3] / "shared" / "data"
UTM = CRS.from_epsg(32631)
FEET = 0.3048
COLORED = (2, 3, 5, 7, 8, 10)

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="shared/data is absent")


def make_cloud(count: int = 500, point_format: int = 7, seed: int = 0) -> laspy.LasData:
    """Points on 90 x 90 x 50 m, with ground, intensities, and colours of 16 bits where the format has them."""
    rng = np.random.default_rng(seed)
    header = laspy.LasHeader(point_format=point_format, version="1.4" if point_format >= 6 else "1.3")
    header.scales, header.offsets = [0.01, 0.01, 0.001], [500_000, 5_700_000, 10]
    las = laspy.LasData(header)
    las.x, las.y = 500_000 + 90 * rng.random(count), 5_700_000 + 90 * rng.random(count)
    las.z = 10 + 50 * rng.random(count)
    las.intensity = rng.integers(0, 1000, count)
    las.classification = rng.choice(np.array([1, 2, 6, 7, 18], np.uint8), count)
    if point_format in COLORED:
        las.red, las.green, las.blue = rng.integers(0, 65536, (3, count), np.uint16)
    return las


def save(las: laspy.LasData, path: Path, crs: CRS | str | None = UTM) -> Path:
    """Write with a CRS, or with a WKT whatever it says."""
    if isinstance(crs, str):
        las.header.vlrs.append(WktCoordinateSystemVlr(crs))
    elif crs is not None:
        las.header.add_crs(crs)
    las.write(path)
    return path


def patched(path: Path, position: int, form: str, *values: float) -> Path:
    """The file with bytes of its header replaced."""
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, position, *values)
    path.write_bytes(data)
    return path


def points_of(las: laspy.LasData) -> NDArray[np.float64]:
    return np.stack([np.asarray(las.x), np.asarray(las.y), np.asarray(las.z)], axis=1)


def read_all(source: CloudSource, start: int = 0, size: int = 137) -> tuple[NDArray, NDArray | None, NDArray]:
    chunks = list(source.chunks(start, size))
    assert all(0 < len(c.xyz) <= size for c in chunks)
    rgb = None if chunks[0].rgb is None else np.concatenate([c.rgb for c in chunks if c.rgb is not None])
    return np.concatenate([c.xyz for c in chunks]), rgb, np.concatenate([c.classes for c in chunks])


# ---- what comes out


@pytest.mark.parametrize("suffix", [".las", ".laz"])
@pytest.mark.parametrize("point_format", range(11))
def test_every_point_format(tmp_path: Path, point_format: int, suffix: str) -> None:
    if suffix == ".laz" and point_format in (4, 5, 9, 10):
        pytest.skip("lazrs does not write wave packets")
    las = make_cloud(point_format=point_format)
    source = open_cloud(save(las, tmp_path / f"a{suffix}"))
    xyz, rgb, classes = read_all(source)
    assert source.count == 500 and xyz.dtype == np.float64
    np.testing.assert_allclose(xyz, points_of(las), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(classes, np.asarray(las.classification))
    assert source.classified and source.height_unit_m == 1.0 and source.crs.crs.equals(UTM)
    assert rgb is not None and rgb.dtype == np.uint8
    if point_format in COLORED:
        assert source.color == "rgb16"
        np.testing.assert_array_equal(rgb, np.stack([las.red, las.green, las.blue], axis=1) >> 8)
    else:
        assert source.color == "intensity" and (rgb[:, 0] == rgb[:, 1]).all() and rgb.min() == 0 and rgb.max() == 255


def test_bounds_are_in_metres_with_heights(tmp_path: Path) -> None:
    las = make_cloud()
    source = open_cloud(save(las, tmp_path / "a.las", CRS.from_epsg(2994)), height_unit="us-ft")
    box, scale = source.bounds, np.array([FEET, FEET, 1200 / 3937])
    low, high = points_of(las).min(axis=0) * scale, points_of(las).max(axis=0) * scale
    np.testing.assert_allclose([box.min_x, box.min_y, box.min_z], low)  # type: ignore[arg-type]
    np.testing.assert_allclose([box.max_x, box.max_y, box.max_z], high)  # type: ignore[arg-type]
    xyz, _, _ = read_all(source)
    np.testing.assert_allclose(xyz, points_of(las) * scale)


def test_extra_dimensions_are_passed_over(tmp_path: Path) -> None:
    las = make_cloud()
    las.add_extra_dim(laspy.ExtraBytesParams("deviation", "f4"))
    las["deviation"] = np.arange(500, dtype="f4")
    for suffix in (".las", ".laz"):
        xyz, _, _ = read_all(open_cloud(save(las, tmp_path / f"a{suffix}")))
        np.testing.assert_allclose(xyz, points_of(las), rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[NDArray[np.float64], list[CloudSource]]:
    """A cloud of three LAZ chunks, as LAS and as LAZ of an old and of a new point format."""
    folder = tmp_path_factory.mktemp("many")
    sources = []
    for name, point_format in (("a.las", 3), ("a.laz", 3), ("b.laz", 7)):
        las = make_cloud(120_000, point_format)
        sources.append(open_cloud(save(las, folder / name), color="none"))
    return points_of(las), sources


@settings(max_examples=30)
@given(st.integers(0, 120_100), st.integers(5_000, 150_000), st.integers(0, 2))
def test_chunks_resume_anywhere(
    many: tuple[NDArray[np.float64], list[CloudSource]], start: int, size: int, which: int
) -> None:
    points, sources = many
    got = [chunk.xyz for chunk in sources[which].chunks(start, size)]
    assert all(len(xyz) <= size for xyz in got)
    np.testing.assert_allclose(np.concatenate([np.empty((0, 3)), *got]), points[start:], rtol=0, atol=1e-6)


def test_chunks_of_one_point_and_of_nonsense(many: tuple[NDArray[np.float64], list[CloudSource]]) -> None:
    points, sources = many
    for source in sources:
        chunk = next(source.chunks(50_001, 1))
        np.testing.assert_allclose(chunk.xyz, points[50_001:50_002], rtol=0, atol=1e-6)
        for start, size in ((-1, 1), (0, 0)):
            with pytest.raises(ValueError, match="start >= 0"):
                next(source.chunks(start, size))


# ---- colours


def with_colors(path: Path, peak: int, at: int | None = None, count: int = 500) -> Path:
    """A file whose colours are all `peak`, or 0 but for `peak` at one point."""
    las = make_cloud(count)
    las.red, las.green, las.blue = np.zeros((3, count), np.uint16)
    if at is None:
        las.green[:] = peak
    else:
        las.green[at] = peak
    return save(las, path)


def test_colors_of_8_bits_stay(tmp_path: Path) -> None:
    source = open_cloud(with_colors(tmp_path / "a.las", 255))
    assert source.color == "rgb8"
    _, rgb, _ = read_all(source)
    assert rgb is not None and (rgb == (0, 255, 0)).all()


def test_large_color_after_a_sample_of_small_ones(tmp_path: Path) -> None:
    las = make_cloud(200_000)
    las.red, las.green, las.blue = np.full((3, 200_000), 7, np.uint16)
    las.blue[150_000 + 4_000] = 256  # between two spots of the sample
    path = save(las, tmp_path / "a.las")
    source = open_cloud(path)
    assert source.color == "rgb8"
    with pytest.raises(InvalidPoints, match=r"a\.las has a colour value of 256 .* --color rgb16"):
        read_all(source, size=100_000)
    _, rgb, _ = read_all(open_cloud(path, color="rgb16"), size=100_000)
    assert rgb is not None and rgb.max() == 1


def test_colors_all_zero(tmp_path: Path) -> None:
    path = with_colors(tmp_path / "a.las", 0)
    with pytest.raises(InvalidPoints, match=r"all are 0.*--color intensity or --color none"):
        open_cloud(path)
    assert open_cloud(path, color="intensity").color == "intensity"
    source = open_cloud(path, color="none")
    assert source.color == "none" and next(source.chunks()).rgb is None


def test_intensities_are_stretched_between_percentiles(tmp_path: Path) -> None:
    las = make_cloud(1000, 6)
    las.intensity = np.arange(1000, dtype=np.uint16) + 5000
    source = open_cloud(save(las, tmp_path / "a.las"))
    assert source.stretch == pytest.approx((5009.99, 5989.01))
    _, rgb, _ = read_all(source)
    assert rgb is not None
    grey = rgb[:, 0].astype(int)
    assert (
        (grey[:11] == 0).all() and (grey[990:] == 255).all() and (np.diff(grey) >= 0).all() and abs(grey[500] - 128) < 2
    )


def test_neither_colors_nor_intensities(tmp_path: Path) -> None:
    las = make_cloud(point_format=6)
    las.intensity[:] = 0
    path = save(las, tmp_path / "a.las")
    assert open_cloud(path).color == "none"
    for asked in ("intensity", "rgb8", "rgb16"):
        with pytest.raises(InvalidPoints, match="--color"):
            open_cloud(path, color=asked)
    with pytest.raises(InvalidOption, match="auto, rgb8, rgb16, intensity, none"):
        open_cloud(path, color="red")


# ---- CRS and height unit


def keys(*pairs: tuple[int, int]) -> VLR:
    rows = [struct.pack("<4H", key, 0, 1, value) for key, value in pairs]
    return VLR("LASF_Projection", 34735, record_data=struct.pack("<4H", 1, 1, 0, len(rows)) + b"".join(rows))


@pytest.mark.parametrize(
    ("pairs", "epsg", "factor", "datum", "height_unit"),
    [
        ([(1024, 1), (3072, 28992)], 28992, 1.0, "unknown", 1.0),
        ([(1024, 1), (3072, 28992), (4096, 5709)], 28992, 1.0, "NAP height", 1.0),
        ([(1024, 1), (3072, 2992), (4096, 6360)], 2992, FEET, "NAVD88 height (ftUS)", 1200 / 3937),
        ([(1024, 1), (3072, 26910), (4099, 9002), (0, 0)], 26910, 1.0, "unknown", FEET),
    ],
)
def test_geotiff_keys(
    tmp_path: Path, pairs: list[tuple[int, int]], epsg: int, factor: float, datum: str, height_unit: float
) -> None:
    las = make_cloud(point_format=3)
    las.header.vlrs.append(keys(*pairs))
    source = open_cloud(save(las, tmp_path / "a.las", None))
    assert source.crs.original.equals(CRS.from_epsg(epsg), ignore_axis_order=True)
    assert (source.crs.factor, source.crs.vertical_datum) == (factor, datum)
    assert source.height_unit_m == pytest.approx(height_unit, rel=1e-12)


def test_geotiff_unit_overrides_the_code(tmp_path: Path) -> None:
    las = make_cloud(point_format=3)
    las.header.vlrs.append(keys((1024, 1), (3072, 26910), (3076, 9002), (4099, 9002)))
    source = open_cloud(save(las, tmp_path / "a.las", None))
    assert source.crs.factor == FEET and source.crs.crs.equals(CRS.from_epsg(26910))


def test_compound_and_bound_wkt(tmp_path: Path) -> None:
    bound = CRS.from_proj4("+proj=utm +zone=31 +ellps=bessel +towgs84=1,2,3 +units=m")
    assert bound.is_bound
    source = open_cloud(save(make_cloud(), tmp_path / "bound.las", bound))
    assert source.crs.original.is_projected and source.crs.vertical_datum == "unknown"
    source = open_cloud(save(make_cloud(), tmp_path / "compound.laz", CRS.from_user_input("EPSG:2992+6360")))
    assert source.height_unit_m == pytest.approx(1200 / 3937) and source.crs.factor == FEET


def test_wkt_behind_the_points(tmp_path: Path) -> None:
    las = make_cloud()
    wkt = WktCoordinateSystemVlr(CRS.from_epsg(28992).to_wkt())
    las.evlrs = VLRList([VLR("other", 7, record_data=bytes(100)), wkt])
    for suffix in (".las", ".laz"):
        source = open_cloud(save(las, tmp_path / f"a{suffix}", None))
        assert source.crs.crs.to_epsg() == 28992


def test_given_crs(tmp_path: Path) -> None:
    bare = save(make_cloud(), tmp_path / "bare.las", None)
    with pytest.raises(MissingCrs, match="--crs"):
        open_cloud(bare)
    assert open_cloud(bare, "EPSG:28992").crs.crs.to_epsg() == 28992
    own = save(make_cloud(), tmp_path / "own.las", CRS.from_epsg(7415))
    assert open_cloud(own, "EPSG:28992").crs.vertical_datum == "NAP height"
    assert open_cloud(own, "EPSG:7415").crs.vertical_datum == "NAP height"
    for other in ("EPSG:32631", "EPSG:28992+5701"):
        with pytest.raises(InvalidCrs, match="says it is in Amersfoort"):
            open_cloud(own, other)


def test_unusable_crs(tmp_path: Path) -> None:
    with pytest.raises(GeographicCrs, match="pdal translate"):
        open_cloud(save(make_cloud(), tmp_path / "degrees.las", CRS.from_epsg(4326)))
    broken = save(make_cloud(), tmp_path / "broken.las", 'PROJCS["nonsense"')
    with pytest.raises(InvalidCrs, match="--crs"):
        open_cloud(broken)
    assert open_cloud(broken, "EPSG:28992").crs.crs.to_epsg() == 28992
    unknown = save(make_cloud(), tmp_path / "unknown.las", 'LOCAL_CS["Unknown",UNIT["metre",1]]')
    with pytest.raises(MissingCrs):
        open_cloud(unknown)
    assert open_cloud(unknown, "EPSG:28992").crs.crs.to_epsg() == 28992


def test_height_unit(tmp_path: Path) -> None:
    feet = save(make_cloud(), tmp_path / "feet.las", CRS.from_epsg(2994))
    with pytest.raises(InvalidHeights, match="--height-unit"):
        open_cloud(feet)
    assert open_cloud(feet, height_unit="ft").height_unit_m == FEET
    assert open_cloud(feet, height_unit="m").height_unit_m == 1.0
    with pytest.raises(InvalidOption, match="m, ft, us-ft"):
        open_cloud(feet, height_unit="yard")


def test_depths_are_negative_heights(tmp_path: Path) -> None:
    las = make_cloud()
    source = open_cloud(save(las, tmp_path / "a.las", CRS.from_user_input("EPSG:32631+5715")))
    xyz, _, _ = read_all(source)
    np.testing.assert_allclose(xyz[:, 2], -np.asarray(las.z))
    assert source.bounds.min_z == pytest.approx(-np.asarray(las.z).max())


# ---- heights out of range


def test_stray_heights_are_noise_and_many_are_refused(tmp_path: Path) -> None:
    las = make_cloud(1000)
    las.z[17] = 50_000
    source = open_cloud(save(las, tmp_path / "one.las"))
    _, _, classes = read_all(source)
    expected = np.asarray(las.classification).copy()
    expected[17] = 7
    np.testing.assert_array_equal(classes, expected)
    las.classification[:] = 1
    las.z[:50] = 50_000
    with pytest.raises(InvalidHeights, match="--height-unit"):
        open_cloud(save(las, tmp_path / "many.las"))
    las.classification[:50] = 18
    assert open_cloud(save(las, tmp_path / "noise.las")).count == 1000


# ---- files that cannot be used


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSource, match="does not exist"):
        open_cloud(tmp_path / "no.las")
    with pytest.raises(UnreadableSource, match="not a file"):
        open_cloud(tmp_path)
    for content in (b"", b"ASTM-E57", b"1.0 2.0 3.0\n"):
        path = tmp_path / "a.las"
        path.write_bytes(content)
        with pytest.raises(UnreadableSource, match=r"expected \.las, \.laz"):
            open_cloud(path)


def test_no_points(tmp_path: Path) -> None:
    for suffix in (".las", ".laz"):
        with pytest.raises(InvalidPoints, match="holds no points"):
            open_cloud(save(make_cloud(0), tmp_path / f"a{suffix}"))


@pytest.mark.parametrize("suffix", [".las", ".laz"])
@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01, 0.5, 0.9, 0.9999])
def test_truncated(tmp_path: Path, suffix: str, share: float) -> None:
    path = save(make_cloud(60_000, 3), tmp_path / f"a{suffix}")
    data = path.read_bytes()
    path.write_bytes(data[: max(int(share * len(data)), 4)])
    with pytest.raises(UnreadableSource, match=r"a\.la[sz]"):
        open_cloud(path)


@pytest.mark.parametrize("count", [0, 1, 49_999, 59_999, 60_001, 100_000, 2**32 - 1])
def test_header_count_does_not_match(tmp_path: Path, count: int) -> None:
    old, new = (save(make_cloud(60_000, f), tmp_path / f"{f}.las") for f in (3, 7))
    with pytest.raises(UnreadableSource, match=r"its header says|the header of"):
        open_cloud(patched(old, 107, "<I", count))
    with pytest.raises(UnreadableSource, match=r"its header says|the header of"):
        open_cloud(patched(new, 247, "<Q", count))
    laz = patched(save(make_cloud(60_000), tmp_path / "7.laz"), 247, "<Q", count)
    with pytest.raises((UnreadableSource, InvalidPoints), match=r"header|holds no points"):
        read_all(open_cloud(laz))
    if not 50_000 < count <= 60_000:  # how full the last chunk is, older LAZ files do not tell
        laz = patched(save(make_cloud(60_000, 3), tmp_path / "3.laz"), 107, "<I", count)
        with pytest.raises((UnreadableSource, InvalidPoints), match=r"header|holds no points"):
            read_all(open_cloud(laz))


def test_damage_in_the_middle_is_found_while_reading(tmp_path: Path) -> None:
    las = make_cloud(500_000, 3)
    path = save(las, tmp_path / "a.laz")
    source = open_cloud(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(int(size * 0.53))
        file.write(np.random.default_rng(0).bytes(20_000))
    with pytest.raises(UnreadableSource, match="damaged"):
        read_all(source, size=100_000)


def test_file_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    for suffix in (".las", ".laz"):
        path = save(make_cloud(1000), tmp_path / f"a{suffix}")
        source = open_cloud(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(UnreadableSource, match="truncated"):
            read_all(source)
        path.unlink()
        with pytest.raises(UnreadableSource, match="cannot be read"):
            read_all(source)


def test_header_bounds_disagree(tmp_path: Path) -> None:
    path = save(make_cloud(), tmp_path / "a.las")
    low = struct.unpack_from("<d", path.read_bytes(), 187)[0]
    open_cloud(patched(path, 187, "<d", low + 0.5))
    with pytest.raises(UnreadableSource, match="its header says"):
        open_cloud(patched(path, 187, "<d", low + 5))
    with pytest.raises(UnreadableSource, match="not finite"):
        open_cloud(patched(path, 187, "<d", np.nan))


def test_stray_point_far_away(tmp_path: Path) -> None:
    las = make_cloud()
    las.header.scales = [1.0, 1.0, 1.0]
    las.y = points_of(las)[:, 1]
    las.Y[3] = 1_000_000_000
    las.update_header()
    with pytest.raises(InvalidPoints, match=r"along y.*at most 200 km"):
        open_cloud(save(las, tmp_path / "a.las"))


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 1e300])
def test_scales_that_are_no_numbers(tmp_path: Path, value: float) -> None:
    with pytest.raises(InvalidPoints, match="no usable numbers"):
        open_cloud(patched(save(make_cloud(), tmp_path / "a.las"), 131, "<d", value))


def test_counts_of_header_records_are_checked(tmp_path: Path) -> None:
    path = save(make_cloud(), tmp_path / "a.las")
    with pytest.raises(UnreadableSource, match="cannot hold"):
        open_cloud(patched(path, 100, "<I", 2**32 - 1))
    path = save(make_cloud(), tmp_path / "b.las")
    with pytest.raises(UnreadableSource, match="cannot hold"):
        open_cloud(patched(path, 243, "<I", 2**32 - 1))


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("originals")
    return [save(make_cloud(60, f), folder / f"{f}{suffix}") for f in (3, 7) for suffix in (".las", ".laz")]


@given(st.data())
def test_damaged_bytes_give_named_errors_only(originals: list[Path], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(originals))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.integers(0, 255))
    broken = path.with_name(f"broken{path.suffix}")
    broken.write_bytes(content)
    try:
        source = open_cloud(broken, height_unit="m")
        assert sum(len(chunk.xyz) for chunk in source.chunks()) == source.count
    except WayfixError as error:
        assert str(error)


# ---- real files


@needs_data
@pytest.mark.parametrize("name", ["autzen-thin-srs.las", "autzen_trim.laz"])
def test_autzen_is_in_feet(name: str) -> None:
    path = DATA / "autzen" / name
    with pytest.raises(InvalidHeights, match="--height-unit"):
        open_cloud(path)
    source = open_cloud(path, str(DATA / "autzen" / "autzen-srs.wkt"), "ft")
    assert source.crs.factor == FEET and source.color == "rgb8" and source.classified
    xyz, _, _ = read_all(source, size=50_000)
    assert len(xyz) == source.count
    np.testing.assert_allclose(xyz, points_of(laspy.read(path)) * FEET, rtol=0, atol=1e-6)
    x, y = source.bounds.center
    lon, lat = conversion(source.crs.crs, WGS84)(np.array([x]), np.array([y]))
    assert abs(lon[0] - -123.069) < 0.02 and abs(lat[0] - 44.055) < 0.02


@needs_data
def test_copc_resumes_in_chunks_of_any_size() -> None:
    path = DATA / "autzen" / "1.2-with-color.copc.laz"
    source = open_cloud(path)
    assert isinstance(source.file, LasFile) and source.color == "rgb8"
    assert source.height_unit_m == pytest.approx(1200 / 3937)  # its vertical CRS says so
    whole = points_of(laspy.read(path)) * (1, 1, source.height_unit_m)
    for start in (0, 1, 17, 400, 1064):
        for size in (1, 5, 100, 5000):
            xyz = np.concatenate([chunk.xyz for chunk in source.chunks(start, size)])
            np.testing.assert_allclose(xyz, whole[start:], rtol=0, atol=1e-6)


@needs_data
def test_ahn_states_no_crs() -> None:
    for path in sorted((DATA / "amsterdam" / "zuid" / "a_pointcloud").glob("*.laz")):
        with pytest.raises(MissingCrs):
            open_cloud(path)
        source = open_cloud(path, "EPSG:7415")
        assert source.color == "intensity" and source.classified and source.crs.vertical_datum == "NAP height"
        xyz, _, _ = read_all(source)
        assert len(xyz) == source.count and -2 < xyz[:, 2].min() < xyz[:, 2].max() < 30
