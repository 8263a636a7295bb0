"""Point clouds (LAS, LAZ, COPC, PLY) as checked chunks in metres; the formats themselves are in `las` and `ply`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pyproj import CRS
from pyproj.exceptions import ProjError

from wayfix.errors import (
    GeographicCrs,
    InvalidCrs,
    InvalidHeights,
    InvalidOption,
    InvalidPoints,
    MissingCrs,
    UnreadableSource,
)
from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import LENGTH_UNITS_M, UNKNOWN_DATUM, MetricCrs, parse_crs, same_crs, to_metric
from wayfix.scene.readers.raster import HEIGHT_LIMITS_M

ColorMode = Literal["rgb8", "rgb16", "intensity", "none"]
COLOR_OPTIONS = ("auto", "rgb8", "rgb16", "intensity", "none")
CHUNK_POINTS = 1_000_000
MAX_EXTENT_M = 200_000.0
"""No scene is larger along any axis; points further apart are strays or in the wrong unit."""
BOUNDS_TOLERANCE_M = 1.0
GROUND, NOISE, HIGH_NOISE = 2, 7, 18

_SAMPLE_SPOTS, _SPOT_POINTS = 16, 4096
_TOLERATED_OUTLIERS = 0.01

Scale = tuple[float, float, float]
"""Metres per unit of x, y and z."""


@dataclass(frozen=True)
class RawPoints:
    """Points as a format's reader decodes them: coordinates scaled to metres, the rest as the file has it."""

    xyz: NDArray[np.float64]
    """float64 (N, 3), metres."""
    colors: tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.integer]] | None
    """Red, green and blue, each uint8 or uint16 (N,); None where the format has none."""
    intensity: NDArray[np.number] | None
    """(N,) of any real type; None where the format has none."""
    classes: NDArray[np.uint8]
    """uint8 (N,), ASPRS."""


class PointFile(Protocol):
    """What `las` and `ply` offer: an opened file whose header is checked."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def count(self) -> int:
        """Number of points."""

    @property
    def low(self) -> Scale:
        """Smallest x, y, z in the file's own units."""

    @property
    def high(self) -> Scale:
        """Largest x, y, z in the file's own units."""

    def own_crs(self) -> CRS | None:
        """The CRS the file states; None where it states none. Raises InvalidCrs where it cannot be read."""

    def read(self, start: int, size: int, scale: Scale) -> Iterator[RawPoints]:
        """Points start, start + 1, ... in file order, at most `size` at a time. Raises UnreadableSource."""


@dataclass(frozen=True)
class CloudChunk:
    """Some consecutive points of a cloud."""

    xyz: NDArray[np.float64]
    """float64 (N, 3), metres, in the metric version of the source's own CRS; z in metres by the height unit."""
    rgb: NDArray[np.uint8] | None
    """uint8 (N, 3); None where the cloud has no colours and no intensities, or they were not asked for."""
    classes: NDArray[np.uint8]
    """uint8 (N,), ASPRS; 0 where the file has none. Points outside HEIGHT_LIMITS_M are noise (7) whatever it says."""


@dataclass(frozen=True)
class CloudSource:
    """An opened and checked point cloud."""

    path: Path
    crs: MetricCrs
    count: int
    """Points in the file."""
    bounds: WorldBox
    """Metres, in `crs.crs`, heights included; LAS: as the header says, PLY: as measured."""
    color: ColorMode
    classified: bool
    """Whether any of a sample spread over the file is ground (ASPRS class 2)."""
    height_unit_m: float
    """Metres per unit of z; negative where the vertical CRS counts depths."""
    file: PointFile
    stretch: tuple[float, float]
    """The intensities that become black and white; 0 and 0 unless `color` is intensity."""

    def chunks(self, start: int = 0, size: int = CHUNK_POINTS) -> Iterator[CloudChunk]:
        """Points start, start + 1, ... of the file, in its order, at most `size` at a time, in bounded memory.

        Nothing comes from a `start` at or past the end. Raises UnreadableSource where the file is damaged, ends early,
        or its points lie outside the bounds its header states, InvalidPoints for colours that do not fit `color`.
        """
        if start < 0 or size < 1:
            raise ValueError(f"chunks need start >= 0 and size >= 1, got {start} and {size}")
        done = start
        for raw in self.file.read(start, size, _scale(self.crs, self.height_unit_m)):
            _check_inside(self.path, raw.xyz, self.bounds, done)
            yield CloudChunk(raw.xyz, self._rgb(raw, done), self._classes(raw))
            done += len(raw.xyz)

    def _rgb(self, raw: RawPoints, done: int) -> NDArray[np.uint8] | None:
        if self.color == "none":
            return None
        rgb = np.empty((len(raw.xyz), 3), np.uint8)
        if self.color == "intensity":
            assert raw.intensity is not None, "open_cloud chose intensity because the file has some"
            low, high = self.stretch
            grey = (raw.intensity.astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low))
            rgb[:] = np.rint(np.clip(np.nan_to_num(grey), 0, 255))[:, None]
            return rgb
        assert raw.colors is not None, "open_cloud chose rgb because the file has some"
        for channel, values in enumerate(raw.colors):
            if self.color == "rgb16":
                np.right_shift(values, 8, out=rgb[:, channel], casting="unsafe")
                continue
            if values.max() > 255:
                raise InvalidPoints(
                    f"{self.path.name} has a colour value of {values.max()} at or after point {done}, though its "
                    "colours looked like 8 bit (0 to 255); give --color rgb16"
                )
            rgb[:, channel] = values
        return rgb

    def _classes(self, raw: RawPoints) -> NDArray[np.uint8]:
        low, high = HEIGHT_LIMITS_M
        assert self.bounds.min_z is not None and self.bounds.max_z is not None
        if self.bounds.min_z - BOUNDS_TOLERANCE_M > low and self.bounds.max_z + BOUNDS_TOLERANCE_M < high:
            return raw.classes
        z = raw.xyz[:, 2]
        return np.where((z < low) | (z > high), np.uint8(NOISE), raw.classes)


def open_cloud(
    path: Path, given_crs: str | None = None, height_unit: str | None = None, color: str = "auto"
) -> CloudSource:
    """Open a .las, .laz, .copc.laz or .ply file, told by its first bytes, and check what can be known without reading
    all of it: the header, and a sample of up to 65 536 points spread over the file (all of a PLY's coordinates).

    `given_crs` (EPSG, WKT or a path) serves files that state none. `height_unit` (m, ft, us-ft) is the unit of z; it
    defaults to that of the vertical CRS, then to metres where x and y are in metres. `color` is auto (colours, else
    intensities, else none), rgb8, rgb16, intensity or none.

    Heights outside HEIGHT_LIMITS_M are taken for noise as long as no more than 1 % of the sample have them.

    Raises UnreadableSource (missing, of another format, damaged, truncated, header and points disagree), MissingCrs,
    InvalidCrs, GeographicCrs, InvalidHeights, InvalidPoints (none at all, not finite, too far apart, unusable colours)
    or InvalidOption.
    """
    if color not in COLOR_OPTIONS:
        raise InvalidOption(f"--color is one of {', '.join(COLOR_OPTIONS)}, got {color!r}")
    file = _open_file(path)
    if file.count == 0:
        raise InvalidPoints(f"{path.name} holds no points; leave it out of the import, or export it again")
    metric = _metric_crs(file, given_crs)
    unit = _height_unit_m(path, metric, height_unit)
    scale = _scale(metric, unit)
    bounds = _bounds(file, scale)
    sample = _sample(file, scale, bounds)
    _check_heights(path, sample)
    mode, stretch = _color_of(path, sample, color)
    classified = bool((sample.classes == GROUND).any())
    return CloudSource(path, metric, file.count, bounds, mode, classified, unit, file, stretch)


def _open_file(path: Path) -> PointFile:
    # Imported here because both build on this module; a PLY needs no laspy either.
    from wayfix.scene.readers.las import open_las
    from wayfix.scene.readers.ply import open_ply

    if not path.is_file():
        raise UnreadableSource(f"{path} does not exist or is not a file")
    try:
        with path.open("rb") as stream:
            signature = stream.read(4)
    except OSError as error:
        raise UnreadableSource(f"{path} cannot be read: {error.strerror or error}") from error
    if signature == b"LASF":
        return open_las(path)
    if signature[:3] == b"ply":
        return open_ply(path)
    raise UnreadableSource(
        f"{path.name} is no point cloud that is read; expected .las, .laz, .copc.laz or .ply "
        "(others: convert them first, for example with pdal translate in.e57 out.laz)"
    )


def _metric_crs(file: PointFile, given: str | None) -> MetricCrs:
    name = file.path.name
    stated = None if given is None else _to_metric(parse_crs(given), "--crs")
    try:
        crs = file.own_crs()
    except InvalidCrs:
        if stated is None:
            raise
        crs = None
    if crs is None or crs.is_engineering:  # an engineering CRS is what 'unknown' is exported as
        if stated is None:
            raise MissingCrs(f"{name} does not say its CRS; give it with --crs (EPSG:<code>, a WKT, or a .prj file)")
        return stated
    own = _to_metric(crs, name)
    if stated is None:
        return own
    same_heights = own.height_factor is None or stated.height_factor is None or _same_heights(own, stated)
    if not same_crs(own.original, stated.original) or not same_heights:
        raise InvalidCrs(
            f"{name} says it is in {crs.name}, --crs says {parse_crs(given or '').name}; "
            "leave --crs out, or mend the file (for example pdal translate --writers.las.a_srs=EPSG:<code>)"
        )
    return own if own.height_factor is not None else stated


def _same_heights(a: MetricCrs, b: MetricCrs) -> bool:
    return (a.vertical_datum, a.height_factor) == (b.vertical_datum, b.height_factor)


def _to_metric(crs: CRS, what: str) -> MetricCrs:
    try:
        metric = to_metric(crs, what)
    except GeographicCrs as error:
        raise GeographicCrs(
            f"{what} is in {crs.name} (degrees), a scene needs a projected CRS in metres; reproject the points first, "
            "for example pdal translate in.laz out.laz reprojection --filters.reprojection.out_srs=EPSG:<UTM zone>"
        ) from error
    except ProjError as error:  # a WKT that PROJ takes apart only when asked for its parts
        raise InvalidCrs(f"the CRS of {what} cannot be used: {error}") from error
    return replace(metric, vertical_datum=metric.vertical_datum or UNKNOWN_DATUM)  # GeoTIFF keys may give but a unit


def _height_unit_m(path: Path, crs: MetricCrs, given: str | None) -> float:
    if given is not None:
        if given not in LENGTH_UNITS_M:
            raise InvalidOption(f"--height-unit is one of {', '.join(LENGTH_UNITS_M)}, got {given!r}")
        return LENGTH_UNITS_M[given]
    if crs.height_factor is not None:
        return crs.height_factor
    if crs.factor == 1.0:
        return 1.0
    raise InvalidHeights(
        f"nothing in {path.name} tells the unit of its heights: it has no vertical CRS, and x and y in feet say "
        f"nothing about z; give --height-unit {'|'.join(LENGTH_UNITS_M)}"
    )


def _scale(crs: MetricCrs, height_unit_m: float) -> Scale:
    return crs.factor, crs.factor, height_unit_m


def _bounds(file: PointFile, scale: Scale) -> WorldBox:
    """The file's bounds in metres; refuses what cannot be a scene."""
    ends = np.array([file.low, file.high]) * scale
    if not np.isfinite(ends).all():
        raise UnreadableSource(f"the header of {file.path.name} states bounds that are not finite; export it again")
    low, high = ends.min(axis=0).tolist(), ends.max(axis=0).tolist()
    for axis, a, b in zip("xyz", low, high, strict=True):
        if b - a > MAX_EXTENT_M:
            raise InvalidPoints(
                f"{file.path.name} reaches from {a:.10g} to {b:.10g} m along {axis}, a scene spans at most "
                f"{MAX_EXTENT_M / 1000:g} km; remove stray points or cut the cloud first (for example pdal translate "
                "in.laz out.laz crop --filters.crop.bounds=...), and check its unit"
            )
    return WorldBox(low[0], low[1], high[0], high[1], low[2], high[2])


def _check_inside(path: Path, xyz: NDArray[np.float64], bounds: WorldBox, first: int) -> None:
    lows = (bounds.min_x, bounds.min_y, bounds.min_z)
    highs = (bounds.max_x, bounds.max_y, bounds.max_z)
    for axis, low, high in zip(range(3), lows, highs, strict=True):
        assert low is not None and high is not None
        smallest, largest = float(xyz[:, axis].min()), float(xyz[:, axis].max())
        if smallest >= low - BOUNDS_TOLERANCE_M and largest <= high + BOUNDS_TOLERANCE_M:
            continue
        raise UnreadableSource(
            f"{path.name} is damaged: points {first} to {first + len(xyz) - 1} have {'xyz'[axis]} from "
            f"{smallest:.10g} to {largest:.10g} m, its header says {low:.10g} to {high:.10g} m; copy or export it again"
        )


def _sample(file: PointFile, scale: Scale, bounds: WorldBox) -> RawPoints:
    """All points of a small file, else runs of points evenly spread over it, its first and last ones included."""
    whole = file.count <= _SAMPLE_SPOTS * _SPOT_POINTS
    length = file.count if whole else _SPOT_POINTS
    starts = [0] if whole else np.linspace(0, file.count - length, _SAMPLE_SPOTS).astype(int).tolist()
    parts: list[RawPoints] = []
    for start in starts:
        done = start
        for raw in file.read(start, length, scale):
            _check_inside(file.path, raw.xyz, bounds, done)
            parts.append(raw)
            done += len(raw.xyz)
            if done >= start + length:
                break
    xyz, classes = np.concatenate([p.xyz for p in parts]), np.concatenate([p.classes for p in parts])
    intensity = [p.intensity for p in parts if p.intensity is not None]
    channels = [p.colors for p in parts if p.colors is not None]
    red, green, blue = (np.concatenate(c) for c in zip(*channels, strict=True)) if channels else (None, None, None)
    colors = None if red is None or green is None or blue is None else (red, green, blue)
    return RawPoints(xyz, colors, np.concatenate(intensity) if intensity else None, classes)


def _check_heights(path: Path, sample: RawPoints) -> None:
    low, high = HEIGHT_LIMITS_M
    z = sample.xyz[~np.isin(sample.classes, (NOISE, HIGH_NOISE)), 2]
    outside = (z < low) | (z > high)
    if outside.sum() > _TOLERATED_OUTLIERS * len(z):
        raise InvalidHeights(
            f"{path.name} has heights from {z.min():g} to {z.max():g} m, expected {low:g} to {high:g}; "
            "is the unit wrong (--height-unit), or are axes swapped?"
        )


def _color_of(path: Path, sample: RawPoints, asked: str) -> tuple[ColorMode, tuple[float, float]]:
    """The colour mode, and the intensities that become black and white."""
    unused = (0.0, 0.0)
    if asked == "none":
        return "none", unused
    if asked in ("rgb8", "rgb16"):
        if sample.colors is None:
            raise InvalidPoints(f"{path.name} has no colours; give --color intensity or --color none")
        if asked == "rgb16" and sample.colors[0].dtype.itemsize == 1:
            raise InvalidPoints(f"{path.name} has colours of 8 bits; leave --color rgb16 out")
        return ("rgb8" if asked == "rgb8" else "rgb16"), unused
    if asked == "auto" and sample.colors is not None:
        peak = max(int(channel.max()) for channel in sample.colors)
        if peak == 0:
            raise InvalidPoints(
                f"{path.name} claims colours but all are 0; import it with --color intensity or --color none"
            )
        return ("rgb16" if peak > 255 else "rgb8"), unused
    stretch = _stretch(sample.intensity)
    if stretch is not None:
        return "intensity", stretch
    if asked == "intensity":
        raise InvalidPoints(f"{path.name} has no intensities, or the same one everywhere; give --color none")
    return "none", unused


def _stretch(intensity: NDArray[np.number] | None) -> tuple[float, float] | None:
    """1st and 99th percentile; smallest and largest where these are equal; None where these are equal too."""
    if intensity is None:
        return None
    values = intensity[np.isfinite(intensity)]
    for percents in ((1, 99), (0, 100)):
        if len(values):
            low, high = np.percentile(values, percents)
            if low < high:
                return float(low), float(high)
    return None
