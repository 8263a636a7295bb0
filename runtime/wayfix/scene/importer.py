"""`wayfix scene import`: sources of any CRS become one scene in metres."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyproj import CRS

from wayfix.errors import InvalidCrs, InvalidOption, NoOverlap, SceneError
from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import UNKNOWN_DATUM, Conversion, conversion, crs_label, identify, point_scale
from wayfix.geo.frame import SceneFrame
from wayfix.scene.folder import new_folder
from wayfix.scene.manifest import Manifest, Source, read_manifest, sha256_of
from wayfix.scene.readers.landmarks import LandmarkSource, read_landmark_file
from wayfix.scene.readers.raster import (
    RasterSource,
    check_heights,
    check_photo,
    height_blocks,
    height_grid,
    height_unit_m,
    open_raster,
    photo_blocks,
    photo_grid,
)
from wayfix.scene.writer import Grid, SceneWriter

MAX_SCALE_ERROR = 0.005
"""Web maps (EPSG:3857) and CRSs far from their zone are refused: sizes and distances would be wrong."""

_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True)
class ImportOptions:
    """What to import and how; only the photo is needed."""

    photo: Path
    dsm: Path | None = None
    dtm: Path | None = None
    landmarks: Path | None = None
    crs: str | None = None
    """CRS of rasters that do not say theirs: EPSG:n, WKT, or a .prj/.wkt path."""
    vertical_datum: str | None = None
    height_unit: str | None = None
    scene_id: str | None = None
    """Default: the folder's name."""
    survey_date: str | None = None
    attribution: tuple[str, ...] = ()
    replace: bool = False
    quiet: bool = True


@dataclass(frozen=True)
class _Heights:
    name: str
    source: RasterSource
    grid: Grid
    unit_m: float
    accuracy_m: float | None


def import_scene(target: Path, options: ImportOptions) -> tuple[Manifest, list[str]]:
    """Make the scene folder `target`. Returns its manifest and remarks a person should read.

    Everything is opened and checked before anything is written; a named SourceError or SceneError leaves no trace.
    """
    # 1. The photo decides the CRS and the extent.
    photo = open_raster(options.photo, options.crs)
    check_photo(photo)
    crs = _registered(photo)
    grid = photo_grid(photo)
    # 2. Everything else is brought there.
    heights = [
        _probe_heights(name, path, options, crs, grid[0])
        for name, path in (("dsm", options.dsm), ("dtm", options.dtm))
        if path is not None
    ]
    datum = _vertical_datum(options, [photo, *(h.source for h in heights)], heights)
    marks = read_landmark_file(options.landmarks, crs, grid[0]) if options.landmarks else None
    scene_id = _scene_id(options.scene_id or target.absolute().name)
    # 3. Only now is something written.
    with new_folder(target, options.replace) as folder:
        writer = SceneWriter(folder, crs, options.quiet)
        writer.photo(grid, photo_blocks(photo))
        for h in heights:
            writer.heights(h.name, h.grid, height_blocks(h.source, crs, h.grid, h.unit_m))
        if marks is not None:
            writer.landmarks(marks.landmarks)
        manifest = writer.finish(
            scene_id=scene_id,
            revision=_next_revision(target),
            vertical_datum=datum,
            sources=_sources(photo, heights, marks),
            attribution=options.attribution,
            survey_date=options.survey_date,
            origin_z=_origin_z(folder, heights),
        )
    return manifest, _remarks(heights, marks, grid[0])


def _registered(photo: RasterSource) -> CRS:
    lonlat = SceneFrame(photo.crs.crs, *photo.extent.center, 0.0).origin_lonlat
    scale = point_scale(photo.crs.crs, *lonlat)
    if abs(scale - 1.0) > MAX_SCALE_ERROR:
        raise InvalidCrs(
            f"a metre of {photo.crs.crs.name} is {1 / scale:.3f} m on the ground at {photo.path.name}; reproject it to "
            "a CRS that keeps lengths, for example gdalwarp -t_srs EPSG:<UTM zone> in.tif out.tif"
        )
    return identify(photo.crs.crs, *lonlat)


def _probe_heights(name: str, path: Path, options: ImportOptions, crs: CRS, extent: WorldBox) -> _Heights:
    source = open_raster(path, options.crs)
    unit_m = height_unit_m(source, options.height_unit)
    check_heights(source, unit_m)
    to_scene = conversion(source.crs.crs, crs)
    own_extent = source.extent if source.crs.crs.equals(crs, ignore_axis_order=True) else _extent_in(source, to_scene)
    if own_extent.clipped(extent) is None:
        raise NoOverlap(f"{path.name} does not touch the photo; is it of another place, or in another CRS?")
    grid = height_grid(source, extent, own_extent)
    return _Heights(name, source, grid, unit_m, to_scene.accuracy_m)


def _extent_in(source: RasterSource, to_scene: Conversion) -> WorldBox:
    e = source.extent
    along = np.linspace(0.0, 1.0, 21)
    xs = np.concatenate([e.min_x + along * e.width] * 2 + [np.full(21, e.min_x), np.full(21, e.max_x)])
    ys = np.concatenate([np.full(21, e.min_y), np.full(21, e.max_y)] + [e.min_y + along * e.height] * 2)
    x, y = to_scene(xs, ys)
    return WorldBox(float(x.min()), float(y.min()), float(x.max()), float(y.max()))


def _vertical_datum(options: ImportOptions, rasters: Sequence[RasterSource], heights: Sequence[_Heights]) -> str:
    stated = {h.source.crs.vertical_datum for h in heights} - {UNKNOWN_DATUM}
    if options.vertical_datum:
        stated |= {_datum_name(options.vertical_datum)}
    if len(stated) > 1:
        raise InvalidCrs(
            f"the sources' heights are in different vertical datums ({', '.join(sorted(stated))}); "
            "bring them to one first"
        )
    return stated.pop() if stated else UNKNOWN_DATUM


def _datum_name(text: str) -> str:
    if text.lower() in ("unknown", "local", "ellipsoid"):
        return text.lower()
    vertical = CRS.from_user_input(text) if re.fullmatch(r"EPSG:\d+", text, re.IGNORECASE) else None
    if vertical is not None and not vertical.is_vertical:
        raise InvalidCrs(f"--vertical-datum {text} is {vertical.name}, which is no vertical CRS (EPSG:5703 is one)")
    return vertical.name if vertical is not None else text


def _scene_id(text: str) -> str:
    scene_id = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_")
    if not _ID.fullmatch(scene_id):
        raise InvalidOption(f"a scene id has 1 to 64 letters, digits, - or _, got {text!r}; give one with --id")
    return scene_id


def _next_revision(target: Path) -> int:
    try:
        return read_manifest(target).revision + 1
    except SceneError:
        return 1


def _sources(photo: RasterSource, heights: Sequence[_Heights], marks: LandmarkSource | None) -> list[Source]:
    listed = [_source(photo.path, "photo", photo.crs.original, 0.0)]
    listed += [_source(h.source.path, h.name, h.source.crs.original, h.accuracy_m) for h in heights]
    if marks is not None:
        listed.append(_source(marks.path, "landmarks", marks.crs, marks.accuracy_m))
    return listed


def _source(path: Path, kind: str, crs: CRS, accuracy_m: float | None) -> Source:
    return Source(
        name=path.name,
        kind=kind,
        bytes=path.stat().st_size,
        sha256=sha256_of(path),
        crs=crs_label(crs),
        accuracy_m=accuracy_m,
    )


def _origin_z(folder: Path, heights: Sequence[_Heights]) -> float:
    """Median ground height rounded to a metre, so that ENU heights are small; 0 where no heights are."""
    names = {h.name for h in heights}
    if not names:
        return 0.0
    import rasterio

    with rasterio.open(folder / ("dtm.tif" if "dtm" in names else "dsm.tif")) as dataset:
        scale = max(1.0, math.sqrt(dataset.width * dataset.height / 1e6))
        cells = dataset.read(1, out_shape=(math.ceil(dataset.height / scale), math.ceil(dataset.width / scale)))
    known = cells[np.isfinite(cells)]
    return float(round(float(np.median(known)))) if known.size else 0.0


def _remarks(heights: Sequence[_Heights], marks: LandmarkSource | None, extent: WorldBox) -> list[str]:
    remarks = []
    if marks is not None and marks.unnamed:
        remarks.append(f"{marks.unnamed} features of {marks.path.name} have no name and were left out")
    if marks is not None and marks.outside:
        remarks.append(f"{marks.outside} landmarks of {marks.path.name} lie outside the photo and were left out")
    for h in heights:
        part = (h.grid[0].clipped(extent) or h.grid[0]).area / extent.area
        if part < 0.99:
            remarks.append(f"{h.source.path.name} covers {part:.0%} of the photo; heights elsewhere are null")
    return remarks
