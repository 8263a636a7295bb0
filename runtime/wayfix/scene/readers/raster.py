"""Rasters (GeoTIFF, or an image with a world file) as north-up RGB or heights in metres."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray
from pyproj import CRS
from rasterio.enums import MaskFlags, Resampling
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window

from wayfix.errors import InvalidCrs, InvalidHeights, InvalidOption, MissingCrs, MissingTransform, UnreadableSource
from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import LENGTH_UNITS_M, MetricCrs, parse_crs, to_metric

BLOCK_ROWS = 512
HEIGHT_LIMITS_M = (-500.0, 10_000.0)
"""No ground or roof lies outside; a value there is an undeclared nodata or a wrong unit."""


@dataclass(frozen=True)
class RasterSource:
    """An opened and checked raster: where it lies once its unit is the metre."""

    path: Path
    crs: MetricCrs
    transform: Affine
    """Pixel -> world, metres."""
    width: int
    height: int

    @property
    def gsd(self) -> float:
        """Ground sampling distance in metres, the geometric mean of both axes."""
        return math.sqrt(abs(self.transform.determinant))

    @property
    def north_up(self) -> bool:
        """Whether rows run south, columns east, and pixels are square to one part in a million."""
        t = self.transform
        square = math.isclose(t.a, -t.e, rel_tol=1e-6)
        return t.a > 0 and t.e < 0 and abs(t.b) + abs(t.d) < 1e-9 * t.a and square

    @property
    def extent(self) -> WorldBox:
        """The world box around all four corners."""
        corners = [self.transform @ p for p in ((0, 0), (self.width, 0), (self.width, self.height), (0, self.height))]
        xs, ys = [c[0] for c in corners], [c[1] for c in corners]
        return WorldBox(min(xs), min(ys), max(xs), max(ys))


def open_raster(path: Path, given_crs: str | None) -> RasterSource:
    """Read a raster's georeference. `given_crs` (EPSG, WKT or a path) serves files that have none.

    Raises UnreadableSource, MissingTransform, MissingCrs, InvalidCrs or GeographicCrs.
    """
    with _opened(path) as dataset:
        if dataset.transform == Affine.identity():
            raise MissingTransform(
                f"{path.name} has no geotransform and no world file; put its .wld/.jgw/.tfw file beside it, "
                "or export it as a GeoTIFF"
            )
        crs = _crs_of(dataset, path, given_crs)
        metric = to_metric(crs, path.name)
        transform = Affine.scale(metric.factor) @ dataset.transform
        return RasterSource(path, metric, transform, dataset.width, dataset.height)


def _opened(path: Path) -> rasterio.DatasetReader:
    import warnings

    if not path.is_file():
        raise UnreadableSource(f"{path} does not exist or is not a file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            return rasterio.open(path)
    except RasterioError as error:
        raise UnreadableSource(f"{path.name} is no raster that can be read: {error}") from error


def _crs_of(dataset: rasterio.DatasetReader, path: Path, given: str | None) -> CRS:
    own = CRS.from_wkt(dataset.crs.to_wkt()) if dataset.crs else None
    if given is None:
        if own is None:
            raise MissingCrs(
                f"{path.name} does not say its CRS; give it with --crs (EPSG:<code>, a WKT, or a .prj file)"
            )
        return own
    stated = parse_crs(given)
    if own is not None and not own.equals(stated, ignore_axis_order=True):
        raise InvalidCrs(
            f"{path.name} says it is in {own.name}, --crs says {stated.name}; leave --crs out, or mend the file"
        )
    return stated


def check_photo(source: RasterSource) -> None:
    """Refuse what cannot be a photo: anything but 1, 3 or 4 bands of 8 bits. Raises UnreadableSource."""
    with _opened(source.path) as dataset:
        if dataset.count not in (1, 3, 4) or any(kind != "uint8" for kind in dataset.dtypes) or _has_palette(dataset):
            raise UnreadableSource(
                f"{source.path.name} has {dataset.count} bands of {dataset.dtypes[0]}, a photo has 1, 3 or 4 of uint8 "
                "without a palette; convert it with gdal_translate -ot Byte -scale (or -expand rgb)"
            )


def _has_palette(dataset: rasterio.DatasetReader) -> bool:
    return dataset.colorinterp[0] == rasterio.enums.ColorInterp.palette


def photo_grid(source: RasterSource) -> tuple[WorldBox, int, int]:
    """Extent, width and height of the north-up grid a photo is kept in; its own one where it is north-up already."""
    if source.north_up:
        return source.extent, source.width, source.height
    extent, gsd = source.extent, source.gsd
    width, height = math.ceil(extent.width / gsd), math.ceil(extent.height / gsd)
    return WorldBox(extent.min_x, extent.max_y - height * gsd, extent.min_x + width * gsd, extent.max_y), width, height


def photo_blocks(source: RasterSource) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]:
    """Row blocks of the photo on its grid: first row, RGB (3, rows, width), mask (rows, width; 255 is valid)."""
    _, width, height = photo_grid(source)
    with _opened(source.path) as dataset:
        if source.north_up:
            yield from _read_photo(dataset, width, height)
        else:
            with _warped(dataset, source, photo_grid(source), source.crs.crs, Resampling.bilinear, None) as warped:
                yield from _read_photo(warped, width, height)


def _read_photo(
    dataset: rasterio.DatasetReader, width: int, height: int
) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]:
    bands = [1, 1, 1] if dataset.count == 1 else [1, 2, 3]
    unmasked = all(flags == [MaskFlags.all_valid] for flags in dataset.mask_flag_enums)
    for row in range(0, height, BLOCK_ROWS):
        rows = min(BLOCK_ROWS, height - row)
        window = Window(0, row, width, rows)
        try:
            rgb = dataset.read(bands, window=window)
            mask = np.full((rows, width), 255, np.uint8) if unmasked else dataset.dataset_mask(window=window)
        except RasterioError as error:
            raise UnreadableSource(f"{dataset.name} breaks off or is damaged at row {row}: {error}") from error
        yield row, rgb, mask


def _warped(
    dataset: rasterio.DatasetReader,
    source: RasterSource,
    grid: tuple[WorldBox, int, int],
    crs: CRS,
    resampling: Resampling,
    nodata: float | None,
) -> WarpedVRT:
    extent, width, height = grid
    options = {"nodata": nodata} if nodata is not None else {"add_alpha": dataset.count != 4}
    return WarpedVRT(
        dataset,
        src_crs=dataset.crs or rasterio.CRS.from_wkt(source.crs.original.to_wkt()),
        crs=rasterio.CRS.from_wkt(crs.to_wkt()),
        transform=Affine(extent.width / width, 0, extent.min_x, 0, -extent.height / height, extent.max_y),
        width=width,
        height=height,
        resampling=resampling,
        **options,
    )


def height_unit_m(source: RasterSource, given: str | None) -> float:
    """Metres per unit of a raster's heights: as given, else as its vertical CRS or band says, else a metric CRS's.

    Raises InvalidHeights where nothing tells: a CRS in feet says nothing about the heights.
    """
    if given is not None:
        if given not in LENGTH_UNITS_M:
            raise InvalidOption(f"--height-unit is one of {', '.join(LENGTH_UNITS_M)}, got {given!r}")
        return LENGTH_UNITS_M[given]
    if source.crs.height_factor is not None:
        return source.crs.height_factor
    with _opened(source.path) as dataset:
        unit = (dataset.units[0] or "").strip().lower()
    names = {
        "m": 1.0,
        "metre": 1.0,
        "meter": 1.0,
        "ft": 0.3048,
        "foot": 0.3048,
        "us-ft": 1200 / 3937,
        "us survey foot": 1200 / 3937,
    }
    if unit in names:
        return names[unit]
    if source.crs.factor == 1.0:
        return 1.0
    raise InvalidHeights(
        f"nothing in {source.path.name} tells the unit of its heights (its CRS is not in metres); "
        f"give --height-unit {'|'.join(LENGTH_UNITS_M)}"
    )


def check_heights(source: RasterSource, unit_m: float) -> None:
    """Read all heights once and refuse what is not a height. Raises InvalidHeights."""
    low, high = HEIGHT_LIMITS_M
    known = 0
    with _opened(source.path) as dataset:
        if dataset.count != 1:
            raise InvalidHeights(f"{source.path.name} has {dataset.count} bands, a height raster has one")
        for row in range(0, dataset.height, BLOCK_ROWS):
            window = Window(0, row, dataset.width, min(BLOCK_ROWS, dataset.height - row))
            try:
                cells, valid = dataset.read(1, window=window), dataset.read_masks(1, window=window) > 0
            except RasterioError as error:
                raise UnreadableSource(f"{source.path.name} breaks off or is damaged at row {row}: {error}") from error
            values = cells[valid].astype(np.float64) * unit_m
            known += values.size
            if not np.isfinite(cells[valid]).all():
                raise InvalidHeights(
                    f"{source.path.name} has NaN or infinite heights that it does not declare as nodata; "
                    "if they mean 'not known', run gdal_edit.py -a_nodata nan on it"
                )
            if values.size and not (values.min() >= low and values.max() <= high):
                raise InvalidHeights(
                    f"{source.path.name} has heights from {values.min():g} to {values.max():g} m, expected {low:g} to "
                    f"{high:g}; is a nodata value undeclared, or the unit wrong?"
                )
    if not known:
        raise InvalidHeights(f"{source.path.name} has no valid height at all; every cell is nodata")


def height_grid(source: RasterSource, scene_extent: WorldBox, source_extent: WorldBox) -> tuple[WorldBox, int, int]:
    """The grid heights are kept in: the scene's CRS, the raster's own gsd, its cells where the CRS is the same.

    `source_extent` is the raster's extent in the scene's CRS.
    """
    gsd = source.gsd
    anchor = source_extent
    common = source_extent.clipped(scene_extent)
    assert common is not None, "the caller checked that they overlap"
    x0 = anchor.min_x + math.floor((common.min_x - anchor.min_x) / gsd + 1e-6) * gsd
    y1 = anchor.max_y - math.floor((anchor.max_y - common.max_y) / gsd + 1e-6) * gsd
    width = math.ceil((common.max_x - x0) / gsd - 1e-6)
    height = math.ceil((y1 - common.min_y) / gsd - 1e-6)
    return WorldBox(x0, y1 - height * gsd, x0 + width * gsd, y1), width, height


def height_blocks(
    source: RasterSource, crs: CRS, grid: tuple[WorldBox, int, int], unit_m: float
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Row blocks of heights on a grid of the scene's CRS: first row, metres (rows, width), NaN where not known."""
    _, width, height = grid
    with _opened(source.path) as dataset, _warped(dataset, source, grid, crs, Resampling.bilinear, math.nan) as warped:
        for row in range(0, height, BLOCK_ROWS):
            window = Window(0, row, width, min(BLOCK_ROWS, height - row))
            yield row, warped.read(1, window=window, out_dtype="float32") * np.float32(unit_m)
