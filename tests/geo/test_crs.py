"""CRSs: read from any usual form, brought to metres without moving anything, converted without guessing."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import rasterio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyproj import CRS, Geod, Proj, Transformer
from pyproj.exceptions import ProjError
from pyproj.transformer import TransformerGroup

from wayfix.errors import ConversionUnavailable, GeographicCrs, InvalidCrs
from wayfix.geo.crs import (
    LENGTH_UNITS_M,
    UNKNOWN_DATUM,
    WGS84,
    conversion,
    crs_label,
    identify,
    meridian_convergence,
    parse_crs,
    to_metric,
)

pytestmark = pytest.mark.filterwarnings("ignore:Best transformation is not available:UserWarning")

AUTZEN_WKT = Path(__file__).resolve().parents[3] / "shared" / "data" / "autzen" / "autzen-srs.wkt"
AUTZEN_LONLAT = (-123.07, 44.06)

FOOT, US_FOOT = 0.3048, 1200.0 / 3937.0


def metric(text: str) -> CRS:
    return to_metric(parse_crs(text), "the source").crs


def lonlat(crs: CRS, x: float, y: float) -> tuple[float, float]:
    """Longitude and latitude on the CRS's own datum, so that no datum change can hide a difference."""
    return Transformer.from_crs(crs, crs.geodetic_crs, always_xy=True).transform(x, y)


def places(crs: CRS) -> list[tuple[float, float]]:
    """Some (x, y) within the area a CRS is meant for, in its own unit."""
    area = crs.area_of_use
    assert area is not None
    transformer = Transformer.from_crs(WGS84, crs, always_xy=True)
    return [
        transformer.transform(area.west + f * (area.east - area.west), area.south + g * (area.north - area.south))
        for f, g in ((0.5, 0.5), (0.1, 0.2), (0.8, 0.9))
    ]


# ---- parse_crs


def test_epsg_codes_are_read_with_and_without_their_authority() -> None:
    assert parse_crs("EPSG:32631") == CRS.from_epsg(32631)
    assert parse_crs("epsg:32631") == CRS.from_epsg(32631)
    assert parse_crs(" 32631\n") == CRS.from_epsg(32631)


@pytest.mark.parametrize("version", ["WKT1_GDAL", "WKT1_ESRI", "WKT2_2019"])
@pytest.mark.parametrize("suffix", [".prj", ".wkt"])
def test_a_wkt_is_read_from_text_and_from_a_file(tmp_path: Path, version: str, suffix: str) -> None:
    wkt = CRS.from_epsg(32610).to_wkt(version)
    path = tmp_path / f"survey{suffix}"
    path.write_text(f"\n  {wkt}\n", encoding="utf-8")
    for crs in (parse_crs(wkt), parse_crs(str(path))):
        assert crs.to_epsg() == 32610


def test_proj_text_is_read() -> None:
    assert parse_crs("+proj=utm +zone=31 +datum=WGS84 +type=crs").is_projected


def test_a_wkt_too_long_for_a_path_is_read() -> None:
    wkt = CRS.from_user_input("EPSG:2994+6360").to_wkt(pretty=True) + " " * 8000
    assert parse_crs(wkt).is_compound


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "hello",
        "EPSG:",
        "EPSG:0",
        "EPSG:999999",
        "-1",
        "0",
        "PROJCS[",
        "POINT (1 2)",
        "+proj=nonsense",
        "\x00",
        "{}",
    ],
    ids=repr,
)
def test_garbage_is_refused_with_what_would_be_accepted(text: str) -> None:
    with pytest.raises(InvalidCrs, match=r"give EPSG:<code>, .*WKT.*\.prj") as caught:
        parse_crs(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["²", "٣²", "9" * 30, "9" * 5000], ids=["superscript", "mixed", "30 digits", "5000 digits"]
)
def test_digits_that_are_no_code_are_refused_like_other_garbage(text: str) -> None:
    with pytest.raises(InvalidCrs):
        parse_crs(text)


def test_a_folder_a_missing_file_and_a_file_without_a_crs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.prj").write_bytes(b"\xff\xfe not a CRS")
    (tmp_path / "empty.prj").write_bytes(b"")
    for name in (".", "missing.prj", "notes.prj", "empty.prj"):
        with pytest.raises(InvalidCrs):
            parse_crs(str(tmp_path / name))


@settings(deadline=None, max_examples=15)  # PROJ searches its whole registry for a name: 0.2 s a text
@given(st.text(max_size=20))
@example("EPSG:32631")
def test_any_text_gives_a_crs_or_invalid_crs(text: str) -> None:
    try:
        assert isinstance(parse_crs(text), CRS)
    except InvalidCrs as error:
        assert error.code == "invalid_crs"


# ---- to_metric


def test_a_crs_in_metres_stays_as_it_is() -> None:
    source = CRS.from_epsg(32631)
    found = to_metric(source, "the source")
    assert found.crs == source
    assert found.factor == 1.0
    assert found.vertical_datum == UNKNOWN_DATUM
    assert found.height_factor is None


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ("EPSG:2994", FOOT),  # Oregon Lambert, international feet
        ("EPSG:2992", FOOT),
        ("EPSG:2269", FOOT),  # Oregon North
        ("EPSG:6405", FOOT),  # Arizona Central
        ("EPSG:2225", US_FOOT),  # California zone 1, US survey feet
        ("EPSG:2264", US_FOOT),  # North Carolina
        ("EPSG:2285", US_FOOT),  # Washington North
        ("EPSG:2314", 0.3047972654),  # Trinidad, Clarke's feet
        ("EPSG:27200", 1.0),  # New Zealand Map Grid, metres
        ("ESRI:102748", US_FOOT),
    ],
)
def test_to_metric_changes_the_unit_and_moves_nothing(text: str, factor: float) -> None:
    source = parse_crs(text)
    found = to_metric(source, "the source")
    assert found.factor == pytest.approx(factor, rel=1e-12)
    assert [axis.unit_conversion_factor for axis in found.crs.axis_info] == [1.0, 1.0]
    assert found.crs.geodetic_crs == source.geodetic_crs
    for x, y in places(source):
        expected = lonlat(source, x, y)
        assert lonlat(found.crs, x * found.factor, y * found.factor) == pytest.approx(expected, rel=0, abs=1e-9)


def test_international_and_us_survey_feet_are_told_apart() -> None:
    """At 2000 km of false easting the two feet lie 4 m apart."""
    international, survey = (to_metric(parse_crs(text), "x").factor for text in ("EPSG:2994", "EPSG:2225"))
    assert international == LENGTH_UNITS_M["ft"]
    assert survey == pytest.approx(LENGTH_UNITS_M["us-ft"], rel=1e-15)
    assert 2_000_000 * (survey / international - 1) == pytest.approx(4.0, abs=1e-3)


def test_kilometres_become_metres() -> None:
    found = to_metric(parse_crs("+proj=utm +zone=31 +datum=WGS84 +units=km +type=crs"), "x")
    assert found.factor == 1000.0
    assert lonlat(found.crs, 628_000.0, 5_803_000.0) == pytest.approx(
        lonlat(CRS.from_epsg(32631), 628_000.0, 5_803_000.0), rel=0, abs=1e-9
    )


@pytest.mark.parametrize("text", ["EPSG:2994", "EPSG:2225", "EPSG:2314", "ESRI:102748"])
def test_the_metric_crs_survives_being_written_into_a_manifest(text: str) -> None:
    source = parse_crs(text)
    found = to_metric(source, "x")
    again = parse_crs(crs_label(found.crs))
    for x, y in places(source):
        # registered metric twins round their false easting to 0.1 mm, that is 1e-9 degrees
        expected = lonlat(source, x, y)
        assert lonlat(again, x * found.factor, y * found.factor) == pytest.approx(expected, rel=0, abs=5e-9)


@pytest.mark.parametrize("text", ["EPSG:4326", "EPSG:4979", "EPSG:4269", "EPSG:4326+5773", "OGC:CRS84", "EPSG:4807"])
def test_degrees_are_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(GeographicCrs, match=r"ortho\.tif is in .*gdalwarp -t_srs"):
        to_metric(parse_crs(text), "ortho.tif")


ENGINEERING = (
    'ENGCRS["site grid",EDATUM["corner stone"],CS[Cartesian,2],AXIS["x",east],AXIS["y",north],LENGTHUNIT["metre",1]]'
)


@pytest.mark.parametrize(
    "text", ["EPSG:4978", "EPSG:5703", ENGINEERING, 'LOCAL_CS["site",UNIT["metre",1]]'], ids=lambda t: t[:9]
)
def test_geocentric_vertical_and_engineering_crss_are_refused(text: str) -> None:
    with pytest.raises(InvalidCrs, match=r"cloud\.laz is in .* no projected CRS"):
        to_metric(parse_crs(text), "cloud.laz")


@pytest.mark.parametrize(
    "code", [2048, 2053, 22275, 2065, 3031, 32661], ids=["Lo19", "Lo29", "Cape", "Krovak", "Antarctica", "UPS"]
)
def test_south_or_west_oriented_axes_are_refused(code: int) -> None:
    with pytest.raises(InvalidCrs, match="only east and north"):
        to_metric(CRS.from_epsg(code), "the source")


@pytest.mark.parametrize("code", [3035, 2193, 2180], ids=["Europe", "New Zealand", "Poland"])
def test_northing_first_crss_are_accepted_and_read_east_first(code: int) -> None:
    found = to_metric(CRS.from_epsg(code), "the source").crs
    area = CRS.from_epsg(code).area_of_use
    assert area is not None
    lon, lat = (area.west + area.east) / 2, (area.south + area.north) / 2
    x, y = conversion(WGS84, found)(np.array([lon]), np.array([lat]))
    x_east, _ = conversion(WGS84, found)(np.array([lon + 0.1]), np.array([lat]))
    assert x_east[0] - x[0] > 5000.0
    back_lon, back_lat = conversion(found, WGS84)(x, y)
    assert (back_lon[0], back_lat[0]) == pytest.approx((lon, lat), abs=1e-8)


@pytest.mark.parametrize(
    ("text", "horizontal", "factor", "vertical", "height_factor"),
    [
        ("EPSG:26910+5703", "NAD83 / UTM zone 10N", 1.0, "NAVD88 height", 1.0),
        ("EPSG:2994+6360", "NAD83(HARN) / Oregon GIC Lambert (ft)", FOOT, "NAVD88 height (ftUS)", US_FOOT),
        ("EPSG:2994+8228", "NAD83(HARN) / Oregon GIC Lambert (ft)", FOOT, "NAVD88 height (ft)", FOOT),
        ("EPSG:26910+6360", "NAD83 / UTM zone 10N", 1.0, "NAVD88 height (ftUS)", US_FOOT),
        ("EPSG:7415", "Amersfoort / RD New", 1.0, "NAP height", 1.0),
    ],
)
def test_a_compound_crs_gives_its_vertical_name_and_unit(
    text: str, horizontal: str, factor: float, vertical: str, height_factor: float
) -> None:
    found = to_metric(parse_crs(text), "the source")
    assert found.crs.name.startswith(horizontal)
    assert not found.crs.is_compound
    assert found.factor == pytest.approx(factor, rel=1e-12)
    assert found.vertical_datum == vertical
    assert found.height_factor == pytest.approx(height_factor, rel=1e-12)


def test_a_3d_projected_crs_has_ellipsoidal_heights() -> None:
    found = to_metric(CRS.from_epsg(32631).to_3d(), "the source")
    assert found.vertical_datum == "ellipsoid"
    assert found.height_factor == 1.0
    assert len(found.crs.axis_info) == 2


def test_a_bound_crs_is_read_as_the_crs_it_wraps() -> None:
    text = "+proj=utm +zone=10 +ellps=GRS80 +towgs84=1,2,3 +units=us-ft +type=crs"
    found = to_metric(parse_crs(text), "the source")
    assert found.factor == pytest.approx(US_FOOT, rel=1e-12)
    assert found.crs.is_projected
    assert not found.crs.is_bound


@pytest.mark.parametrize("text", ["EPSG:26910+5866", "EPSG:26910+6357"], ids=["MLLW depth", "NAVD88 depth"])
def test_depths_are_never_taken_for_heights(text: str) -> None:
    """Either refused, or with a factor that turns positive-down into positive-up, or none."""
    try:
        factor = to_metric(parse_crs(text), "the source").height_factor
    except InvalidCrs:
        return
    assert factor is None or factor < 0


# ---- identify, crs_label


def test_identify_finds_the_registered_metric_twin_of_a_crs_in_feet() -> None:
    assert identify(metric("EPSG:2994"), *AUTZEN_LONLAT).to_epsg() == 2993


def test_identify_finds_the_code_of_the_autzen_wkt() -> None:
    if not AUTZEN_WKT.is_file():
        pytest.skip("the Autzen data is not here")
    source = parse_crs(str(AUTZEN_WKT))
    found = to_metric(source, "autzen")
    assert found.factor == FOOT
    assert identify(source, *AUTZEN_LONLAT).to_epsg() == 2994
    registered = identify(found.crs, *AUTZEN_LONLAT)
    assert crs_label(registered) == "EPSG:2993"
    x, y = 636_000.0, 849_000.0
    lon, lat = lonlat(source, x, y)
    assert (lon, lat) == pytest.approx(AUTZEN_LONLAT, abs=0.1)
    assert lonlat(registered, x * FOOT, y * FOOT) == pytest.approx((lon, lat), rel=0, abs=1e-9)


@pytest.mark.parametrize(("code", "lon", "lat"), [(32631, 4.9, 52.37), (28992, 4.9, 52.37), (32756, 151.2, -33.9)])
def test_identify_knows_a_crs_by_its_numbers_and_not_by_its_name(code: int, lon: float, lat: float) -> None:
    definition = CRS.from_epsg(code).to_json_dict()
    definition.pop("id")
    definition["name"] = "somebody's own name"
    assert identify(CRS.from_json_dict(definition), lon, lat).to_epsg() == code


def test_identify_returns_an_unregistered_crs_itself() -> None:
    own = parse_crs("+proj=tmerc +lat_0=52.3 +lon_0=4.87 +k=1 +x_0=1234 +y_0=5678 +datum=WGS84 +type=crs")
    assert identify(own, 4.9, 52.37) is own
    assert parse_crs(crs_label(own)) == own


def test_a_registered_crs_is_labelled_by_its_code() -> None:
    assert crs_label(CRS.from_epsg(28992)) == "EPSG:28992"


# ---- conversion


@pytest.mark.parametrize("code", [32631, 32756, 28992, 27700, 26910, 2993, 3035, 5514, 31467, 2154, 27572, 6677])
def test_a_conversion_is_never_ballpark_and_states_its_accuracy(code: int) -> None:
    found = conversion(CRS.from_epsg(code), WGS84)
    assert "ballpark" not in found.description.lower()
    assert "ballpark" not in found.transformer.to_proj4().lower()
    assert found.accuracy_m is not None
    assert 0.0 <= found.accuracy_m < 50.0


def test_a_conversion_without_datum_change_is_exact() -> None:
    assert conversion(CRS.from_epsg(32631), WGS84).accuracy_m == 0.0


def test_a_datum_change_is_carried_out() -> None:
    """The tower at Amersfoort: RD (155000, 463000); its Bessel latitude is 110 m off the WGS84 one."""
    found = conversion(CRS.from_epsg(28992), WGS84)
    lon, lat = found(np.array([155_000.0]), np.array([463_000.0]))
    assert (lon[0], lat[0]) == pytest.approx((5.38720621, 52.15517440), abs=2e-5)
    assert found.accuracy_m is not None
    assert found.accuracy_m > 0


@pytest.mark.parametrize(
    "text",
    [
        "+proj=utm +zone=10 +ellps=GRS80 +type=crs",
        "+proj=utm +zone=10 +ellps=clrk66 +type=crs",
        "+proj=tmerc +lon_0=9 +R=6371000 +type=crs",
        "EPSG:2327",  # Xian 1980
        "EPSG:2099",  # Qatar 1948
    ],
)
def test_a_datum_nobody_registered_is_not_guessed(text: str) -> None:
    with pytest.raises(ConversionUnavailable, match="no operation is registered"):
        conversion(metric(text), WGS84)


def test_a_missing_grid_is_named() -> None:
    source = CRS.from_epsg(3396)  # PD/83: every registered operation needs BETA2007
    group = TransformerGroup(source, WGS84, always_xy=True, allow_ballpark=False)
    if group.transformers:
        pytest.skip("the grid is installed here")
    with pytest.raises(ConversionUnavailable, match=r"PD/83.*WGS 84.*de_adv_BETA2007\.tif"):
        conversion(source, WGS84)


@settings(deadline=None, max_examples=50)
@given(st.floats(200_000.0, 800_000.0), st.floats(0.0, 9_000_000.0))
def test_a_conversion_and_its_inverse_return_to_the_same_place(x: float, y: float) -> None:
    lon, lat = UTM31(np.array([x]), np.array([y]))
    assert -180.0 <= lon[0] <= 180.0
    assert -90.0 <= lat[0] <= 90.0
    back_x, back_y = UTM31.inverse(lon, lat)
    assert (back_x[0], back_y[0]) == pytest.approx((x, y), rel=0, abs=1e-6)


UTM31 = conversion(CRS.from_epsg(32631), WGS84)


def test_a_point_that_cannot_be_converted_raises_instead_of_becoming_infinite() -> None:
    with pytest.raises(ProjError):
        UTM31.inverse(np.array([0.0]), np.array([100.0]))


def test_two_conversions_of_one_scene_are_the_same_operation() -> None:
    one, two = (conversion(CRS.from_epsg(28992), WGS84) for _ in range(2))
    assert one.description == two.description
    assert one(np.array([121_000.0]), np.array([487_000.0])) == two(np.array([121_000.0]), np.array([487_000.0]))


# ---- meridian_convergence (conformal projections: elsewhere grid north alone does not turn every heading alike)


def grid_north_bearing(crs: CRS, lon: float, lat: float) -> float:
    """True bearing of grid north, from the geodesic to a point 10 m up the grid: independent of PROJ's factors."""
    step = conversion(WGS84, crs)
    x, y = step(np.array([lon]), np.array([lat]))
    up_lon, up_lat = step.inverse(x, y + 10.0)
    lon0, lat0 = step.inverse(x, y)
    return Geod(ellps="WGS84").inv(lon0[0], lat0[0], up_lon[0], up_lat[0])[0]


@pytest.mark.parametrize(
    ("code", "lon", "lat"),
    [
        (32631, 4.9, 52.37),
        (32631, 1.1, 52.37),
        (32733, 12.8, -34.3),
        (32733, 17.9, -34.3),
        (28992, 4.9, 52.37),
        (27700, -3.2, 55.95),
        (2993, -123.07, 44.06),
        (5514, 14.4, 50.1),
        (2193, 174.8, -41.3),
    ],
)
def test_convergence_is_the_true_bearing_of_grid_north_clockwise_positive(code: int, lon: float, lat: float) -> None:
    crs = CRS.from_epsg(code)
    # 1e-3 degrees: the difference between the CRS's own datum and WGS84
    assert meridian_convergence(crs, lon, lat) == pytest.approx(grid_north_bearing(crs, lon, lat), abs=1e-3)


@pytest.mark.parametrize(
    ("code", "lon", "lat"),
    [(27572, 2.35, 48.85), (27572, -1.5, 47.2), (26591, 9.19, 45.46)],
    ids=["Paris", "Nantes", "Milan, counted from Rome"],
)
def test_convergence_is_right_where_longitude_is_not_counted_from_greenwich(code: int, lon: float, lat: float) -> None:
    crs = CRS.from_epsg(code)
    assert meridian_convergence(crs, lon, lat) == pytest.approx(grid_north_bearing(crs, lon, lat), abs=1e-3)


@pytest.mark.parametrize(("lon", "lat"), [(4.9, 52.37), (1.1, 52.37), (5.9, 10.0), (0.2, 70.0), (3.0, 45.0)])
def test_utm_convergence_follows_the_textbook_formula(lon: float, lat: float) -> None:
    textbook = math.degrees(math.atan(math.tan(math.radians(lon - 3.0)) * math.sin(math.radians(lat))))
    assert meridian_convergence(CRS.from_epsg(32631), lon, lat) == pytest.approx(textbook, abs=2e-3)


def test_a_wkt_with_a_code_is_its_registered_crs_whatever_its_datum_is_called() -> None:
    wkt = rasterio.CRS.from_epsg(3067).to_wkt().replace("ETRS89", "EUREF-FIN")
    metric = to_metric(CRS.from_wkt(wkt), "a raster")
    assert metric.crs.to_epsg() == 3067
    assert conversion(metric.crs, WGS84).accuracy_m is not None


def test_a_code_that_belongs_to_another_projection_is_not_believed() -> None:
    wkt = CRS.from_epsg(32631).to_wkt("WKT1_GDAL").replace('"32631"', '"32632"')
    metric = to_metric(CRS.from_wkt(wkt), "a raster")
    x, y = Proj(metric.crs)(3.0, 52.0)
    assert (x, y) == pytest.approx(Proj(CRS.from_epsg(32631))(3.0, 52.0), abs=1e-3)
