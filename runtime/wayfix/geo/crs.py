"""Coordinate reference systems: reading them, bringing them to metres, and moving between them without guessing."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyproj import CRS, Proj, Transformer
from pyproj.aoi import AreaOfInterest
from pyproj.database import query_crs_info
from pyproj.enums import PJType
from pyproj.exceptions import CRSError
from pyproj.proj import Factors
from pyproj.transformer import TransformerGroup

from wayfix.errors import ConversionUnavailable, GeographicCrs, InvalidCrs

WGS84 = CRS.from_epsg(4326)
UNKNOWN_DATUM = "unknown"

LENGTH_UNITS_M = {"m": 1.0, "ft": 0.3048, "us-ft": 1200.0 / 3937.0}
"""Metres per unit: metre, international foot, US survey foot."""


def parse_crs(text: str) -> CRS:
    """A CRS from `EPSG:n`, WKT, PROJ text, or the path of a .prj/.wkt file; InvalidCrs otherwise."""
    source = text.strip()
    try:
        path = Path(source)
        if len(source) < 4096 and path.is_file():
            source = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        pass  # a long WKT is no path
    try:
        return CRS.from_user_input(int(source) if _is_code(source) else source)
    except CRSError as error:
        raise InvalidCrs(
            f"cannot read a CRS from {text[:80]!r}: {error}; give EPSG:<code>, WKT, or a .prj or .wkt file"
        ) from error


def _is_code(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


@dataclass(frozen=True)
class MetricCrs:
    """A projected CRS in metres, and the factor that brings coordinates of the original CRS into it."""

    crs: CRS
    original: CRS
    """The CRS as the source has it, in its own unit."""
    factor: float
    vertical_datum: str
    height_factor: float | None
    """Metres per unit of the original's heights; None where the CRS does not tell."""


def to_metric(crs: CRS, what: str) -> MetricCrs:
    """The horizontal part of `crs` with its unit changed to metre; same datum, same projection, no resampling needed.

    Raises GeographicCrs for degrees and InvalidCrs for any other CRS that is not a plain projected one (east, north).
    `what` names the source in the message.
    """
    horizontal, vertical_datum, height_factor = _split(crs)
    horizontal = _by_its_code(horizontal)
    if horizontal.is_geographic:
        raise GeographicCrs(
            f"{what} is in {horizontal.name} (degrees), a scene needs a projected CRS in metres; "
            "reproject it first, for example gdalwarp -t_srs EPSG:<UTM zone> in.tif out.tif"
        )
    if not horizontal.is_projected:
        raise InvalidCrs(f"{what} is in {horizontal.name!r}, which is no projected CRS; give one with --crs")
    directions = {axis.direction for axis in horizontal.axis_info}
    if directions != {"east", "north"}:
        raise InvalidCrs(
            f"{what}: axes of {horizontal.name!r} point {sorted(directions)}, only east and north are supported"
        )
    factor = horizontal.axis_info[0].unit_conversion_factor
    if factor == 1.0:
        return MetricCrs(horizontal, horizontal, 1.0, vertical_datum, height_factor)
    return MetricCrs(_with_metre(horizontal), horizontal, factor, vertical_datum, height_factor)


def _split(crs: CRS) -> tuple[CRS, str, float | None]:
    if crs.is_bound and crs.source_crs is not None:
        crs = crs.source_crs
    if crs.is_compound:
        horizontal, vertical = crs.sub_crs_list
        if horizontal.is_bound and horizontal.source_crs is not None:
            horizontal = horizontal.source_crs
        axis = vertical.axis_info[0]
        # Depths count downwards: their heights are negative.
        sign = -1.0 if axis.direction == "down" else 1.0
        return horizontal, vertical.name, sign * axis.unit_conversion_factor
    if len(crs.axis_info) == 3:
        return crs.to_2d(), "ellipsoid", crs.axis_info[2].unit_conversion_factor
    return crs, UNKNOWN_DATUM, None


def _by_its_code(crs: CRS) -> CRS:
    """The registered CRS whose code a WKT carries, where it projects alike, else the CRS itself.

    A WKT from another PROJ version may name a datum that this one's registry has under another name, and then no
    operation is found for it.
    """
    code = crs.to_json_dict().get("id", {})
    if code.get("authority") != "EPSG" or not crs.is_projected:
        return crs
    try:
        registered = CRS.from_epsg(int(code["code"]))
    except CRSError:
        return crs
    area = registered.area_of_use
    if area is None:
        return crs
    place = (area.west + area.east) / 2, (area.south + area.north) / 2
    x, y = Proj(crs)(*place)
    u, v = Proj(registered)(*place)
    return registered if math.hypot(x - u, y - v) < 1e-3 else crs


def _with_metre(crs: CRS) -> CRS:
    definition = crs.to_json_dict()
    definition.pop("id", None)
    for axis in definition["coordinate_system"]["axis"]:
        axis["unit"] = "metre"
    for parameter in definition["conversion"]["parameters"]:
        unit = parameter.get("unit")
        if isinstance(unit, dict) and unit.get("type") == "LinearUnit":
            parameter["value"] *= unit["conversion_factor"]
            parameter["unit"] = "metre"
    definition["name"] = f"{crs.name} (metres)" if "metre" not in crs.name else crs.name
    return CRS.from_json_dict(definition)


def identify(crs: CRS, lon: float, lat: float) -> CRS:
    """The registered EPSG CRS that equals `crs` in everything but name, or `crs` itself where there is none.

    `lon`, `lat` (degrees) narrow the search to CRSs valid at the scene.
    """
    registered = crs.to_epsg()
    if registered is not None:
        return CRS.from_epsg(registered)
    area = AreaOfInterest(lon, lat, lon, lat)
    for info in query_crs_info("EPSG", PJType.PROJECTED_CRS, area, contains=True):
        candidate = CRS.from_epsg(info.code)
        axes = [axis.direction for axis in candidate.axis_info]
        if sorted(axes) == ["east", "north"] and same_crs(candidate, crs):
            return candidate
    return crs


def same_crs(a: CRS, b: CRS) -> bool:
    """Whether coordinates (x first) mean the same place in both; names and the order of axes do not count."""
    return a.equals(b, ignore_axis_order=True)


def crs_label(crs: CRS) -> str:
    """`EPSG:n` where the CRS is registered, else its WKT."""
    epsg = crs.to_epsg()
    return f"EPSG:{epsg}" if epsg else crs.to_wkt()


@dataclass(frozen=True)
class Conversion:
    """One fixed operation between two CRSs (x/lon first), with the accuracy its registry states."""

    transformer: Transformer
    accuracy_m: float | None
    """Stated accuracy in metres, 0 for a conversion without datum change, None where the registry states none."""
    description: str

    def __call__(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray, NDArray]:
        """Forward: arrays of x (or lon) and y (or lat), float64."""
        return self.transformer.transform(x, y, errcheck=True)

    def inverse(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray, NDArray]:
        """Backward, from target to source."""
        return self.transformer.transform(x, y, errcheck=True, direction="INVERSE")


def conversion(source: CRS, target: CRS) -> Conversion:
    """The best operation PROJ can carry out here; never a ballpark one (PROJ's name for 'datum change left out').

    One operation is chosen for the whole scene, so that two runs and two points never use different ones.
    Raises ConversionUnavailable where none of known accuracy exists.
    """
    with warnings.catch_warnings():
        # PROJ warns that a better operation lacks its grid; the accuracy of the one chosen says the same, and stays.
        warnings.simplefilter("ignore", UserWarning)
        group = TransformerGroup(source, target, always_xy=True, allow_ballpark=False)
    if not group.transformers:
        missing = ", ".join(grid.short_name for op in group.unavailable_operations for grid in op.grids)
        hint = f"it needs the grids {missing}" if missing else "no operation is registered"
        raise ConversionUnavailable(f"cannot convert from {source.name} to {target.name}: {hint}")
    chosen = group.transformers[0]
    accuracy = chosen.accuracy if chosen.accuracy is not None and chosen.accuracy >= 0 else None
    if accuracy is None and _same_datum(source, target):
        accuracy = 0.0  # PROJ 9.7 and later state none for a mere projection
    return Conversion(chosen, accuracy, chosen.description)


def _same_datum(source: CRS, target: CRS) -> bool:
    a, b = source.geodetic_crs, target.geodetic_crs
    return a is not None and b is not None and same_crs(a, b)


def meridian_convergence(crs: CRS, lon: float, lat: float) -> float:
    """Degrees from true north to grid north at a place, clockwise positive (PROJ's factors)."""
    return float(_factors(crs, lon, lat).meridian_convergence)


def point_scale(crs: CRS, lon: float, lat: float) -> float:
    """Grid metres per ellipsoid metre at a place: 0.9996 to 1.001 in a UTM zone, 1.6 for web maps at 52 degrees."""
    return float(_factors(crs, lon, lat).areal_scale) ** 0.5


def _factors(crs: CRS, lon: float, lat: float) -> Factors:
    geographic = crs.geodetic_crs
    assert geographic is not None and geographic.prime_meridian is not None, "a projected CRS has a geodetic base"
    meridian = geographic.prime_meridian
    offset = math.degrees(float(meridian.longitude) * float(meridian.unit_conversion_factor))
    # PROJ wants longitude from the CRS's own prime meridian, which need not be Greenwich.
    return Proj(crs).get_factors(lon - offset, lat)
