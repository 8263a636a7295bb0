"""A scene's place on Earth: longitude first, true north is not grid north, ground metres are not grid metres."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import CRS, Geod, Transformer

from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import WGS84, conversion
from wayfix.geo.frame import SceneFrame, lonlat_polygon

GEOD = Geod(ellps="WGS84")
AMSTERDAM = (4.9, 52.37)

UTM_PLACES = [
    (32631, 4.9, 52.37),  # Amsterdam, east of the central meridian (3 E)
    (32631, 1.1, 52.6),  # Norfolk, west of it
    (32631, 3.0, 45.0),  # on it
    (32610, -122.4, 37.8),  # San Francisco
    (32610, -125.8, 44.0),
    (32756, 151.2, -33.9),  # Sydney, west of 153 E
    (32756, 155.8, -33.9),
    (32733, 18.0, -34.0),  # Cape Town side
    (32733, 12.1, -20.0),
    (32633, 15.6, 78.2),  # Longyearbyen
    (32660, 179.9, 10.0),
    (32701, -179.9, -17.0),  # Fiji
]


def frame_at(code: int, lon: float, lat: float) -> SceneFrame:
    crs = CRS.from_epsg(code)
    x, y = conversion(WGS84, crs)(np.array([lon]), np.array([lat]))
    return SceneFrame(crs, float(x[0]), float(y[0]), 0.0)


def around(frame: SceneFrame, half: float, dx: float = 0.0, dy: float = 0.0) -> WorldBox:
    x, y = frame.origin_x + dx, frame.origin_y + dy
    return WorldBox(x - half, y - half, x + half, y + half)


def rings_of(geometry: dict[str, Any]) -> list[list[list[float]]]:
    """The outer rings of a Polygon or MultiPolygon; there must be no holes."""
    polygons = [geometry["coordinates"]] if geometry["type"] == "Polygon" else geometry["coordinates"]
    assert all(len(polygon) == 1 for polygon in polygons)
    return [polygon[0] for polygon in polygons]


def check_rfc7946(geometry: dict[str, Any]) -> None:
    for ring in rings_of(geometry):
        assert ring[0] == ring[-1]
        assert len(ring) >= 4
        assert shapely.LinearRing(ring).is_ccw
        assert shapely.Polygon(ring).is_valid
        assert all(-180.0 <= lon <= 180.0 and -90.0 <= lat <= 90.0 for lon, lat in ring)


def total_area(geometry: dict[str, Any]) -> float:
    return sum(shapely.Polygon(ring).area for ring in rings_of(geometry))


# ---- longitude and latitude


def test_longitude_comes_before_latitude_everywhere() -> None:
    frame = frame_at(32631, *AMSTERDAM)
    assert frame.origin_lonlat == pytest.approx(AMSTERDAM, abs=1e-9)
    assert frame.lonlat(frame.origin_x, frame.origin_y) == pytest.approx(AMSTERDAM, abs=1e-9)
    (ring,) = rings_of(frame.wgs84_geometry(around(frame, 100.0)))
    for lon, lat in ring:
        assert lon == pytest.approx(4.9, abs=0.01)
        assert lat == pytest.approx(52.37, abs=0.01)


def test_a_known_place_in_utm_31n_is_where_the_map_has_it() -> None:
    """The central meridian of zone 31 is 3 E, and 5 000 000 m of grid north are 5 002 000.8 m of meridian."""
    frame = SceneFrame(CRS.from_epsg(32631), 500_000.0, 5_000_000.0, 0.0)
    lon, lat = frame.origin_lonlat
    assert lon == pytest.approx(3.0, abs=1e-9)
    assert GEOD.inv(3.0, 0.0, 3.0, lat)[2] == pytest.approx(5_000_000.0 / 0.9996, abs=1e-3)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(UTM_PLACES), st.floats(1.0, 5000.0), st.floats(-5000.0, 5000.0), st.floats(-5000.0, 5000.0))
def test_a_footprint_is_a_closed_counterclockwise_polygon_of_the_four_corners(
    place: tuple[int, float, float], half: float, dx: float, dy: float
) -> None:
    frame = frame_at(*place)
    box = around(frame, half, dx, dy)
    geometry = frame.wgs84_geometry(box)
    check_rfc7946(geometry)
    if geometry["type"] == "Polygon":
        corners = {(box.min_x, box.min_y), (box.max_x, box.min_y), (box.max_x, box.max_y), (box.min_x, box.max_y)}
        (ring,) = rings_of(geometry)
        assert sorted(map(tuple, ring[:-1])) == sorted(frame.lonlat(x, y) for x, y in corners)


def test_the_footprint_has_the_area_of_the_ground() -> None:
    frame = frame_at(32631, 3.0, 52.0)
    (ring,) = rings_of(frame.wgs84_geometry(around(frame, 500.0)))
    area, _ = GEOD.polygon_area_perimeter([p[0] for p in ring], [p[1] for p in ring])
    assert area == pytest.approx(1e6 / 0.9996**2, rel=1e-5)  # positive: counterclockwise on the ellipsoid too


# ---- grid north against true north


@pytest.mark.parametrize(("code", "lon", "lat"), UTM_PLACES)
def test_yaw_is_minus_the_meridian_convergence(code: int, lon: float, lat: float) -> None:
    frame = frame_at(code, lon, lat)
    central = code % 100 * 6 - 183
    textbook = math.atan(math.tan(math.radians(lon - central)) * math.sin(math.radians(lat)))
    yaw = frame.enu_pose(around(frame, 50.0)).yaw
    assert yaw == pytest.approx(-math.radians(frame.convergence_deg), abs=1e-4)
    assert yaw == pytest.approx(-textbook, abs=1e-4)


def test_the_sign_of_yaw_changes_across_the_central_meridian_and_the_equator() -> None:
    east_north, west_north = frame_at(32631, 5.5, 50.0), frame_at(32631, 0.5, 50.0)
    east_south, west_south = frame_at(32731, 5.5, -50.0), frame_at(32731, 0.5, -50.0)
    signs = [
        math.copysign(1, f.enu_pose(around(f, 50.0)).yaw) for f in (east_north, west_north, east_south, west_south)
    ]
    assert signs == [-1, 1, 1, -1]


@pytest.mark.parametrize(("code", "lon", "lat"), [*UTM_PLACES, (28992, 4.9, 52.37), (27700, -3.2, 55.95)])
@pytest.mark.filterwarnings("ignore:Best transformation is not available:UserWarning")
def test_the_heading_of_grid_north_is_the_bearing_of_a_point_up_the_grid(code: int, lon: float, lat: float) -> None:
    frame = frame_at(code, lon, lat)
    for grid_heading in (0.0, 90.0, 180.0, 275.0):
        step = math.radians(grid_heading)
        there = frame.lonlat(frame.origin_x + 10.0 * math.sin(step), frame.origin_y + 10.0 * math.cos(step))
        bearing = GEOD.inv(*frame.origin_lonlat, *there)[0]
        assert (frame.heading_of(grid_heading) - bearing + 180.0) % 360.0 - 180.0 == pytest.approx(0.0, abs=2e-3)


@pytest.mark.parametrize(("code", "x", "y"), [(27572, 600_000.0, 2_428_000.0), (26591, 1_514_000.0, 5_034_000.0)])
def test_yaw_and_convergence_agree_where_longitude_is_not_counted_from_greenwich(code: int, x: float, y: float) -> None:
    frame = SceneFrame(CRS.from_epsg(code), x, y, 0.0)
    assert frame.enu_pose(around(frame, 50.0)).yaw == pytest.approx(-math.radians(frame.convergence_deg), abs=1e-4)


@settings(deadline=None)
@given(st.floats(-720.0, 1080.0))
def test_a_true_heading_is_the_grid_heading_plus_the_convergence_within_0_to_360(grid_heading: float) -> None:
    heading = FRAME.heading_of(grid_heading)
    assert 0.0 <= heading < 360.0
    turn = math.radians(heading - grid_heading - FRAME.convergence_deg)
    assert math.cos(turn) == pytest.approx(1.0, abs=1e-12)


FRAME = frame_at(32631, *AMSTERDAM)


# ---- ENU


@pytest.mark.parametrize(("code", "lon", "lat"), UTM_PLACES)
def test_the_origin_is_0_0_in_enu(code: int, lon: float, lat: float) -> None:
    frame = frame_at(code, lon, lat)
    assert frame.enu(frame.origin_x, frame.origin_y) == pytest.approx((0.0, 0.0), abs=1e-8)
    pose = frame.enu_pose(around(frame, 20.0))
    assert (pose.x, pose.y) == pytest.approx((0.0, 0.0), abs=1e-8)


@pytest.mark.parametrize(("code", "lon", "lat"), UTM_PLACES)
def test_x_is_true_east_and_y_is_true_north(code: int, lon: float, lat: float) -> None:
    frame = frame_at(code, lon, lat)
    for bearing in (0.0, 90.0, 180.0, 270.0, 33.0):
        there_lon, there_lat, _ = GEOD.fwd(lon, lat, bearing, 1000.0)
        x, y = frame.to_wgs84.inverse(np.array([there_lon]), np.array([there_lat]))
        expected = (1000.0 * math.sin(math.radians(bearing)), 1000.0 * math.cos(math.radians(bearing)))
        assert frame.enu(float(x[0]), float(y[0])) == pytest.approx(expected, abs=1e-3)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(UTM_PLACES), st.floats(-20_000.0, 20_000.0), st.floats(-20_000.0, 20_000.0))
def test_enu_is_the_tangent_plane_at_the_origin(place: tuple[int, float, float], dx: float, dy: float) -> None:
    """Against the rotation of earth-centred differences written out by hand."""
    frame = frame_at(*place)
    earth = Transformer.from_crs("EPSG:4979", "EPSG:4978", always_xy=True)
    lon, lat = frame.origin_lonlat
    here = np.array(earth.transform(lon, lat, 0.0))
    there = np.array(earth.transform(*frame.lonlat(frame.origin_x + dx, frame.origin_y + dy), 0.0))
    lam, phi = math.radians(lon), math.radians(lat)
    east = np.array([-math.sin(lam), math.cos(lam), 0.0])
    north = np.array([-math.sin(phi) * math.cos(lam), -math.sin(phi) * math.sin(lam), math.cos(phi)])
    expected = (float(east @ (there - here)), float(north @ (there - here)))
    assert frame.enu(frame.origin_x + dx, frame.origin_y + dy) == pytest.approx(expected, rel=0, abs=1e-6)


def test_a_grid_box_on_the_central_meridian_is_larger_on_the_ground() -> None:
    frame = frame_at(32631, 3.0, 52.0)
    pose = frame.enu_pose(around(frame, 500.0))
    assert pose.size_x == pytest.approx(1000.4, abs=1e-2)
    assert pose.size_y == pytest.approx(1000.4, abs=1e-2)
    assert pose.yaw == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("code", "lon", "lat"), UTM_PLACES)
def test_enu_size_is_the_geodesic_size(code: int, lon: float, lat: float) -> None:
    frame = frame_at(code, lon, lat)
    box = around(frame, 200.0)
    cx, cy = box.center
    across = GEOD.inv(*frame.lonlat(box.min_x, cy), *frame.lonlat(box.max_x, cy))[2]
    along = GEOD.inv(*frame.lonlat(cx, box.min_y), *frame.lonlat(cx, box.max_y))[2]
    pose = frame.enu_pose(box)
    assert (pose.size_x, pose.size_y) == pytest.approx((across, along), abs=1e-4)


def test_size_x_is_the_grid_east_side_and_size_y_the_grid_north_side() -> None:
    x, y = FRAME.origin_x + 300.0, FRAME.origin_y - 200.0
    pose = FRAME.enu_pose(WorldBox(x - 40.0, y - 5.0, x + 40.0, y + 5.0))
    assert (pose.size_x, pose.size_y) == pytest.approx((80.0, 10.0), rel=1e-3)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(UTM_PLACES), st.floats(-2000.0, 2000.0), st.floats(-2000.0, 2000.0), st.floats(5.0, 200.0))
def test_the_pose_puts_the_corners_where_they_are(
    place: tuple[int, float, float], dx: float, dy: float, half: float
) -> None:
    """Rebuilding the box from centre, size and yaw gives the corners to the millimetre."""
    frame = frame_at(*place)
    box = around(frame, half, dx, dy)
    pose = frame.enu_pose(box)
    cos, sin = math.cos(pose.yaw), math.sin(pose.yaw)
    for sx, x in ((-0.5, box.min_x), (0.5, box.max_x)):
        for sy, y in ((-0.5, box.min_y), (0.5, box.max_y)):
            u, v = sx * pose.size_x, sy * pose.size_y
            rebuilt = (pose.x + u * cos - v * sin, pose.y + u * sin + v * cos)
            assert rebuilt == pytest.approx(frame.enu(x, y), rel=0, abs=2e-2)


def test_heights_are_relative_to_the_origin_and_missing_ones_stay_missing() -> None:
    frame = SceneFrame(CRS.from_epsg(32631), FRAME.origin_x, FRAME.origin_y, 12.0)
    flat = around(frame, 10.0)
    tall = WorldBox(flat.min_x, flat.min_y, flat.max_x, flat.max_y, 14.0, 20.0)
    half_known = WorldBox(flat.min_x, flat.min_y, flat.max_x, flat.max_y, 14.0, None)
    assert (frame.enu_pose(tall).z, frame.enu_pose(tall).size_z) == (5.0, 6.0)
    for box in (flat, half_known):
        assert frame.enu_pose(box).z is None
        assert frame.enu_pose(box).size_z is None


# ---- the antimeridian


ANTIMERIDIAN = {
    code: SceneFrame(CRS.from_epsg(code), 500_000.0, 1_000_000.0, 0.0) for code in (32660, 32601, 32760, 32701)
}


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(sorted(ANTIMERIDIAN)),
    st.floats(1.0, 75.0),
    st.floats(-2.0, 2.0),
    st.floats(5.0, 5000.0),
)
def test_boxes_at_the_antimeridian_are_cut_there_and_keep_their_area(
    code: int, degrees: float, shift: float, half: float
) -> None:
    frame = ANTIMERIDIAN[code]
    lat = degrees if code < 32700 else -degrees
    x, y = frame.to_wgs84.inverse(np.array([180.0]), np.array([lat]))
    cx, cy = float(x[0]) + shift * half, float(y[0])
    box = WorldBox(cx - half, cy - half, cx + half, cy + half)
    corners = [
        frame.lonlat(px, py)
        for px, py in (
            (box.min_x, box.min_y),
            (box.max_x, box.min_y),
            (box.max_x, box.max_y),
            (box.min_x, box.max_y),
        )
    ]
    uncut = shapely.Polygon([(lon % 360.0, lat) for lon, lat in corners])
    crosses = uncut.bounds[0] < 180.0 < uncut.bounds[2]
    geometry = frame.wgs84_geometry(box)
    check_rfc7946(geometry)
    assert geometry["type"] == ("MultiPolygon" if crosses else "Polygon")
    assert total_area(geometry) == pytest.approx(uncut.area, rel=1e-7)
    for ring in rings_of(geometry):
        lons = [lon for lon, _ in ring]
        assert min(lons) >= 0.0 or max(lons) <= 0.0  # every part lies on one side
        assert max(lons) - min(lons) < 1.0
    parts = shapely.union_all([shapely.Polygon([(lon % 360.0, lat) for lon, lat in r]) for r in rings_of(geometry)])
    if not crosses:
        assert shapely.symmetric_difference(parts, uncut).area <= 1e-7 * uncut.area


@pytest.mark.parametrize("code", sorted(ANTIMERIDIAN))
def test_a_crossing_box_has_one_part_in_each_hemisphere(code: int) -> None:
    frame = ANTIMERIDIAN[code]
    lat = 17.0 if code < 32700 else -17.0
    x, y = frame.to_wgs84.inverse(np.array([180.0]), np.array([lat]))
    geometry = frame.wgs84_geometry(WorldBox(x[0] - 300.0, y[0] - 100.0, x[0] + 100.0, y[0] + 100.0))
    assert geometry["type"] == "MultiPolygon"
    east, west = sorted(rings_of(geometry), key=lambda ring: -ring[0][0])
    assert max(lon for lon, _ in east) == 180.0
    assert min(lon for lon, _ in west) == -180.0
    ratio = shapely.Polygon(east).area / shapely.Polygon(west).area
    assert ratio == pytest.approx(3.0, rel=0.02)  # 300 m lie in the eastern hemisphere, 100 m in the western


@pytest.mark.parametrize(
    ("ring", "parts", "area"),
    [
        ([(179, 0), (-179, 0), (-179, 1), (179, 1)], 2, 2.0),
        ([(-179, 0), (-179, 1), (179, 1), (179, 0)], 2, 2.0),  # starts in the west, clockwise
        ([(179, 0), (180, 0), (180, 1), (179, 1)], 1, 1.0),  # only touches
        ([(179, 0), (-180, 0), (-180, 1), (179, 1)], 1, 1.0),  # touches, written as -180
        ([(180, 0), (-179, 0), (-179, 1), (180, 1)], 1, 1.0),
        ([(-180, 0), (-179, 0), (-179, 1), (-180, 1)], 1, 1.0),
        ([(-1, 0), (1, 0), (1, 1), (-1, 1)], 1, 2.0),  # Greenwich is no place to cut
    ],
)
def test_rings_are_cut_only_where_they_cross(ring: list[tuple[float, float]], parts: int, area: float) -> None:
    geometry = lonlat_polygon(ring)
    check_rfc7946(geometry)
    assert len(rings_of(geometry)) == parts
    assert total_area(geometry) == pytest.approx(area, abs=1e-9)


def test_a_ring_away_from_the_antimeridian_keeps_its_numbers() -> None:
    ring = [(4.9, 52.37), (4.91, 52.3701), (4.9099, 52.38), (4.8999, 52.3799)]
    assert lonlat_polygon(ring) == {"type": "Polygon", "coordinates": [[list(p) for p in [*ring, ring[0]]]]}


def test_a_concave_ring_that_crosses_twice_is_cut_into_all_its_parts() -> None:
    """A C open to the west: its back lies east of the antimeridian, its two arms reach across."""
    ring = [(179, 0), (-178, 0), (-178, 1), (179, 1), (179, 0.8), (-179, 0.8), (-179, 0.2), (179, 0.2)]
    geometry = lonlat_polygon([(float(lon), float(lat)) for lon, lat in ring])
    check_rfc7946(geometry)
    assert len(rings_of(geometry)) == 3
    assert total_area(geometry) == pytest.approx(3.0 - 2.0 * 0.6, abs=1e-9)
