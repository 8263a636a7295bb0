"""`wayfix scene import`: sources of any CRS become one scene in metres."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import rasterio
from pyproj import CRS

import wayfix
from wayfix.errors import InvalidOption, SceneError
from wayfix.geo.crs import crs_label
from wayfix.scene.cloud_import import CloudImport, CloudLayers
from wayfix.scene.folder import new_folder
from wayfix.scene.journal import Journal
from wayfix.scene.manifest import FORMAT_VERSION, Manifest, RegistrationEntry, Source, read_manifest, sha256_of
from wayfix.scene.readers.raster import Grid, open_raster, photo_grid
from wayfix.scene.reconcile import HeightSource, cropped, finest_first, height_blocks, height_grid, photo_blocks
from wayfix.scene.registration import measure_shift
from wayfix.scene.sources import ImportSources, open_sources
from wayfix.scene.writer import SceneWriter

_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
MAX_SHIFT_PIXELS = 2.0
GDAL_CACHE_MB = 64
"""GDAL would take 5 % of the machine's memory for what is read and written once."""


@dataclass(frozen=True)
class ImportOptions:
    """What to import and how. A photo or a cloud is needed; everything else is optional."""

    photo: Path | None = None
    clouds: tuple[Path, ...] = ()
    dsm: tuple[Path, ...] = ()
    dtm: tuple[Path, ...] = ()
    landmarks: Path | None = None
    osm: Path | None = None
    crs: str | None = None
    """CRS of rasters and clouds that do not say theirs: EPSG:n, WKT, or a .prj/.wkt path."""
    vertical_datum: str | None = None
    height_unit: str | None = None
    color: str = "auto"
    """Where a cloud's colours come from: auto, rgb8, rgb16, intensity or none."""
    bbox: tuple[float, float, float, float] | None = None
    """min_x, min_y, max_x, max_y in the scene's CRS: only this is taken."""
    area: Path | None = None
    """A polygon file: only what lies in it is taken."""
    scene_id: str | None = None
    """Default: the folder's name."""
    survey_date: str | None = None
    attribution: tuple[str, ...] = ()
    replace: bool = False
    quiet: bool = True


@dataclass
class _Import:
    """One run: the opened sources, the temporary folder, and what was remarked."""

    options: ImportOptions
    sources: ImportSources
    folder: Path
    journal: Journal
    writer: SceneWriter
    remarks: list[str] = field(default_factory=list)


def import_scene(target: Path, options: ImportOptions) -> tuple[Manifest, list[str]]:
    """Make the scene folder `target`. Returns its manifest and remarks a person should read.

    Everything is opened and checked before anything is written; a named SourceError or SceneError leaves no trace. An
    import that was killed or interrupted goes on where it stopped when it is run again; one that is complete already is
    left as it is.
    """
    # 1. Open and check the sources; the photo, else the first cloud, decides the CRS.
    sources = open_sources(options)
    scene_id = make_scene_id(options.scene_id or target.absolute().name)
    fingerprint = _fingerprint(options, sources)
    finished = _already_imported(target, options, fingerprint)
    if finished is not None:
        return finished, ["this import is complete already; nothing was changed"]
    with rasterio.Env(GDAL_CACHEMAX=GDAL_CACHE_MB), new_folder(target, options.replace, fingerprint) as folder:
        journal = Journal(folder, fingerprint)
        run = _Import(options, sources, folder, journal, SceneWriter(folder, sources.crs, options.quiet, journal))
        run.remarks += sources.remarks
        # 2. Clouds become rasters and point tiles.
        cloud_import = _cloud_import(run)
        cloud = cloud_import.build() if cloud_import else None
        # 3. Photo, heights and names are reconciled and written.
        grid = _write_photo(run, cloud)
        heights = _write_heights(run, cloud, grid)
        _write_names(run)
        registration = _register(run, cloud)
        # 4. The manifest makes it a scene.
        if cloud_import is not None and cloud is not None:
            run.remarks += cloud.remarks
            if not run.writer.has("points"):
                run.writer.finished_points()
            cloud_import.remove_work()
        manifest = run.writer.finish(
            scene_id=scene_id,
            revision=_next_revision(target),
            grid=grid,
            vertical_datum=sources.vertical_datum,
            sources=_source_entries(sources),
            attribution=[*options.attribution, *sources.attribution],
            survey_date=options.survey_date,
            origin_z=_origin_z(folder, heights),
            registration=registration,
            fingerprint=fingerprint,
        )
        journal.remove()
    return manifest, run.remarks


def make_scene_id(text: str) -> str:
    """A scene's name in requests: small letters, digits, - and _. Raises InvalidOption where nothing is left."""
    scene_id = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_")
    if not _ID.fullmatch(scene_id):
        raise InvalidOption(f"a scene id has 1 to 64 letters, digits, - or _, got {text!r}; give one with --id")
    return scene_id


def _fingerprint(options: ImportOptions, sources: ImportSources) -> str:
    """Of everything that decides the result: files by path, size and time, options, and the program's version."""
    files = [[str(p.absolute()), p.stat().st_size, p.stat().st_mtime_ns] for p in sources.paths]
    skipped = {"replace", "quiet"}
    chosen = {k: repr(v) for k, v in vars(options).items() if k not in skipped}
    text = json.dumps([files, chosen, wayfix.__version__, FORMAT_VERSION], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _already_imported(target: Path, options: ImportOptions, fingerprint: str) -> Manifest | None:
    if options.replace:
        return None
    with contextlib.suppress(SceneError):
        manifest = read_manifest(target)
        return manifest if manifest.fingerprint == fingerprint else None
    return None


def _next_revision(target: Path) -> int:
    try:
        return read_manifest(target).revision + 1
    except SceneError:
        return 1


def _cloud_import(run: _Import) -> CloudImport | None:
    s = run.sources
    if not s.clouds:
        return None
    return CloudImport(s.clouds, s.crs, s.extent, s.area, run.folder, run.journal, run.options.quiet)


def _write_photo(run: _Import, cloud: CloudLayers | None) -> Grid:
    photos = [run.sources.photo] if run.sources.photo else []
    if cloud is not None:
        photos.append(open_raster(cloud.photo, None))
    grid = cropped(photo_grid(photos[0]), run.sources.extent)
    if not run.writer.has("bev"):
        run.writer.photo(grid, photo_blocks(photos, run.sources.crs, grid, run.sources.area))
    return grid


def _write_heights(run: _Import, cloud: CloudLayers | None, grid: Grid) -> list[str]:
    written = []
    for name, given in (("dsm", run.sources.dsm), ("dtm", run.sources.dtm)):
        sources = list(given)
        if cloud is not None:
            raster = open_raster(cloud.dsm if name == "dsm" else cloud.dtm, None)
            sources.append(HeightSource(raster, raster.extent, 1.0, 0.0))
        if not sources:
            continue
        cells = height_grid(sources, grid[0])
        if not run.writer.has(name):
            run.writer.heights(
                name, cells, height_blocks(finest_first(sources), run.sources.crs, cells, run.sources.area)
            )
        part = (cells[0].clipped(grid[0]) or cells[0]).area / grid[0].area
        if part < 0.99:
            run.remarks.append(f"{name} covers {part:.0%} of the photo; heights elsewhere are null")
        written.append(name)
    return written


def _write_names(run: _Import) -> None:
    landmarks, osm = run.sources.landmarks, run.sources.osm
    if (landmarks or osm) and not (run.writer.has("landmarks") or run.writer.has("network")):
        run.writer.names(landmarks, osm.network if osm else None, osm.places if osm else ())


def _register(run: _Import, cloud: CloudLayers | None) -> RegistrationEntry | None:
    photo = run.sources.photo
    if photo is None or cloud is None or not cloud.colored:
        return None
    raster = open_raster(cloud.photo, None)
    found = measure_shift(photo.path, cloud.photo, rasterio.CRS.from_wkt(photo.crs.original.to_wkt()), raster.gsd)
    if found is None:
        run.remarks.append("photo and cloud could not be compared: no texture where both have colour")
        return None
    text = f"the cloud lies {found.pixels:.2f} pixels from the photo (east {found.east_m:+.2f} m, north "
    text += f"{found.north_m:+.2f} m to add to the cloud; {found.windows} windows of {found.pixel_m:g} m pixels)"
    if found.pixels > MAX_SHIFT_PIXELS:
        text = f"warning: {text}; more than {MAX_SHIFT_PIXELS:g}: check the CRS and datum of both"
    run.remarks.append(text)
    return RegistrationEntry(east_m=found.east_m, north_m=found.north_m, pixels=found.pixels, windows=found.windows)


def _source_entries(sources: ImportSources) -> list[Source]:
    return list(_entries(sources))


def _entries(s: ImportSources) -> Iterator[Source]:
    if s.photo is not None:
        yield _source(s.photo.path, "photo", s.photo.crs.original, 0.0)
    for cloud in s.clouds:
        accuracy = 0.0 if cloud.to_scene is None else cloud.to_scene.accuracy_m
        yield _source(cloud.source.path, "cloud", cloud.source.crs.original, accuracy)
    for name, rasters in (("dsm", s.dsm), ("dtm", s.dtm)):
        for raster in rasters:
            yield _source(raster.raster.path, name, raster.raster.crs.original, raster.accuracy_m)
    if s.landmark_source is not None:
        yield _source(s.landmark_source.path, "landmarks", s.landmark_source.crs, s.landmark_source.accuracy_m)
    if s.osm is not None:
        yield _source(s.osm.path, "osm", CRS.from_epsg(4326), s.osm.accuracy_m)


def _source(path: Path, kind: str, crs: CRS, accuracy_m: float | None) -> Source:
    return Source(
        name=path.name,
        kind=kind,
        bytes=path.stat().st_size,
        sha256=sha256_of(path),
        crs=crs_label(crs),
        accuracy_m=accuracy_m,
    )


def _origin_z(folder: Path, heights: Sequence[str]) -> float:
    """Median ground height rounded to a metre, so that ENU heights are small; 0 where no heights are."""
    if not heights:
        return 0.0
    with rasterio.open(folder / f"{'dtm' if 'dtm' in heights else 'dsm'}.tif") as dataset:
        scale = max(1.0, math.sqrt(dataset.width * dataset.height / 1e6))
        cells = dataset.read(1, out_shape=(math.ceil(dataset.height / scale), math.ceil(dataset.width / scale)))
    known = cells[np.isfinite(cells)]
    return float(round(float(np.median(known)))) if known.size else 0.0
