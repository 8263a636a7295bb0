"""One scene's place on Earth: its CRS, its WGS84 answers, and its ENU frame (REP-103: x east, y north, z up)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import shapely
from pyproj import CRS, Transformer

from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import WGS84, Conversion, conversion, meridian_convergence


@dataclass(frozen=True)
class EnuPose:
    """A box in the scene's ENU frame: centre and size in metres, yaw of the box's long-easting axis in radians.

    z is height above the scene's origin, None without heights. Grid east is not true east, so yaw is seldom 0.
    """

    x: float
    y: float
    z: float | None
    size_x: float
    size_y: float
    size_z: float | None
    yaw: float


@dataclass(frozen=True)
class SceneFrame:
    """The scene's projected CRS and origin; everything needed to say where a world box is on Earth."""

    crs: CRS
    origin_x: float
    origin_y: float
    origin_z: float

    @cached_property
    def to_wgs84(self) -> Conversion:
        """Scene CRS -> WGS84 (lon, lat), one fixed operation."""
        return conversion(self.crs, WGS84)

    @cached_property
    def origin_lonlat(self) -> tuple[float, float]:
        """WGS84 longitude and latitude of the origin, degrees."""
        lon, lat = self.to_wgs84(np.array([self.origin_x]), np.array([self.origin_y]))
        return float(lon[0]), float(lat[0])

    @cached_property
    def convergence_deg(self) -> float:
        """Meridian convergence at the origin: degrees from true north to grid north, clockwise positive."""
        return meridian_convergence(self.crs, *self.origin_lonlat)

    @cached_property
    def _topocentric(self) -> Transformer:
        lon, lat = self.origin_lonlat
        return Transformer.from_pipeline(
            "+proj=pipeline +step +proj=unitconvert +xy_in=deg +xy_out=rad +step +proj=cart +ellps=WGS84 "
            f"+step +proj=topocentric +ellps=WGS84 +lon_0={lon!r} +lat_0={lat!r} +h_0=0"
        )

    def lonlat(self, x: float, y: float) -> tuple[float, float]:
        """WGS84 longitude and latitude in degrees of a world point."""
        lon, lat = self.to_wgs84(np.array([x]), np.array([y]))
        return float(lon[0]), float(lat[0])

    def enu(self, x: float, y: float) -> tuple[float, float]:
        """East and north of the origin in metres of a world point, on the ellipsoid's tangent plane."""
        lon, lat = self.lonlat(x, y)
        east, north, _ = self._topocentric.transform(lon, lat, 0.0)
        return float(east), float(north)

    def heading_of(self, grid_heading_deg: float) -> float:
        """True heading (degrees clockwise from true north) of a grid heading (from grid north)."""
        return (grid_heading_deg + self.convergence_deg) % 360.0

    def enu_pose(self, box: WorldBox) -> EnuPose:
        """Centre, size and yaw of a world box in the scene's ENU frame."""
        x, y = self.enu(*box.center)
        cx, cy = box.center
        west, east = self.enu(box.min_x, cy), self.enu(box.max_x, cy)
        south, north = self.enu(cx, box.min_y), self.enu(cx, box.max_y)
        has_z = box.min_z is not None and box.max_z is not None
        return EnuPose(
            x=x,
            y=y,
            z=(box.min_z + box.max_z) / 2 - self.origin_z if has_z else None,  # type: ignore[operator]
            size_x=math.dist(west, east),
            size_y=math.dist(south, north),
            size_z=box.max_z - box.min_z if has_z else None,  # type: ignore[operator]
            yaw=math.atan2(east[1] - west[1], east[0] - west[0]),
        )

    def wgs84_geometry(self, box: WorldBox) -> dict[str, Any]:
        """GeoJSON geometry (RFC 7946: lon, lat; counterclockwise) of a world box's footprint.

        A Polygon, or a MultiPolygon cut at the antimeridian where the box crosses it.
        """
        xs = np.array([box.min_x, box.max_x, box.max_x, box.min_x])
        ys = np.array([box.min_y, box.min_y, box.max_y, box.max_y])
        lon, lat = self.to_wgs84(xs, ys)
        return lonlat_polygon(list(zip(lon.tolist(), lat.tolist(), strict=True)))


def lonlat_polygon(ring: list[tuple[float, float]]) -> dict[str, Any]:
    """GeoJSON geometry of an open ring of (lon, lat), cut at +-180 degrees where it crosses."""
    lons = np.unwrap([p[0] for p in ring], period=360.0)
    shape = shapely.orient_polygons(shapely.Polygon([(x, p[1]) for x, p in zip(lons, ring, strict=True)]))
    parts = []
    for turn in (-360.0, 0.0, 360.0):
        cut = shapely.intersection(shape, shapely.box(-180.0 + turn, -90.0, 180.0 + turn, 90.0))
        for part in (p for p in shapely.get_parts(cut) if p.area > 0):
            parts.append(shapely.transform(part, lambda p, turn=turn: p - [turn, 0.0]))
    if len(parts) == 1 and not np.any(np.abs(lons) > 180.0):
        parts = [shape]  # the common case keeps the corners exactly as computed
    rings = [[[[float(x), float(y)] for x, y in part.exterior.coords]] for part in shapely.orient_polygons(parts)]
    if len(rings) == 1:
        return {"type": "Polygon", "coordinates": rings[0]}
    return {"type": "MultiPolygon", "coordinates": rings}
