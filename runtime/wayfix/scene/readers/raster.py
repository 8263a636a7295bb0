"""Rasters (GeoTIFF, or an image with a world file) as north-up RGB or heights in metres."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray
from pyproj import CRS
from rasterio.enums import Resampling
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window

from wayfix.errors import InvalidCrs, InvalidHeights, InvalidOption, MissingCrs, MissingTransform, UnreadableSource
from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import LENGTH_UNITS_M, MetricCrs, parse_crs, same_crs, to_metric

BLOCK_ROWS = 512
HEIGHT_LIMITS_M = (-500.0, 10_000.0)
"""No ground or roof lies outside; a value there is an undeclared nodata or a wrong unit."""


Grid = tuple[WorldBox, int, int]
"""Extent (scene CRS, metres), width and height (pixels) of a north-up raster."""


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
    if own is not None and not same_crs(own, stated):
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


def photo_grid(source: RasterSource) -> Grid:
    """Extent, width and height of the north-up grid a photo is kept in; its own one where it is north-up already."""
    if source.north_up:
        return source.extent, source.width, source.height
    extent, gsd = source.extent, source.gsd
    width, height = math.ceil(extent.width / gsd), math.ceil(extent.height / gsd)
    return WorldBox(extent.min_x, extent.max_y - height * gsd, extent.min_x + width * gsd, extent.max_y), width, height


class RasterOnGrid:
    """A raster seen on a grid of the scene: read as it is where its pixels are the grid's, resampled where not."""

    def __init__(self, source: RasterSource, crs: CRS, grid: Grid, heights: bool) -> None:
        self._grid = grid
        self._dataset = _opened(source.path)
        self._offset = _pixel_offset(source, crs, grid)
        self._reader: rasterio.DatasetReader | WarpedVRT = self._dataset
        if self._offset is None:
            self._reader = _warped(self._dataset, source, crs, grid, math.nan if heights else None)

    def photo(self, row: int, rows: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """RGB (3, rows, width) and mask (rows, width; 255 is valid) from a row of the grid on."""
        bands = [1, 1, 1] if self._dataset.count == 1 else [1, 2, 3]
        try:
            return self._reader.read(bands, window=self._window(row, rows)), self._reader.dataset_mask(
                window=self._window(row, rows)
            )
        except RasterioError as error:
            raise self._damaged(row, error) from error

    def heights(self, row: int, rows: int) -> NDArray[np.float32]:
        """Heights (rows, width) in the raster's own unit, NaN where not known."""
        window = self._window(row, rows)
        try:
            cells = self._reader.read(1, window=window, out_dtype="float32")
            known = self._reader.read_masks(1, window=window) > 0
        except RasterioError as error:
            raise self._damaged(row, error) from error
        return np.where(known, cells, np.float32(np.nan))

    def __enter__(self) -> RasterOnGrid:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not self._dataset:
            self._reader.close()
        self._dataset.close()

    def _window(self, row: int, rows: int) -> Window:
        column, top = self._offset or (0, 0)
        return Window(column, top + row, self._grid[1], rows)

    def _damaged(self, row: int, error: RasterioError) -> UnreadableSource:
        return UnreadableSource(f"{self._dataset.name} breaks off or is damaged near row {row}: {error}")


def _pixel_offset(source: RasterSource, crs: CRS, grid: Grid) -> tuple[int, int] | None:
    """Column and row of the grid's upper left pixel in the raster, or None where the pixels are not the same."""
    extent, width, height = grid
    gsd = extent.width / width
    if not (source.north_up and math.isclose(source.gsd, gsd, rel_tol=1e-9) and same_crs(source.crs.crs, crs)):
        return None
    column = (extent.min_x - source.transform.c) / gsd
    row = (source.transform.f - extent.max_y) / gsd
    whole = round(column), round(row)
    if max(abs(column - whole[0]), abs(row - whole[1])) > 1e-3:
        return None
    inside = whole[0] >= 0 and whole[1] >= 0 and whole[0] + width <= source.width and whole[1] + height <= source.height
    return whole if inside else None


def _warped(
    dataset: rasterio.DatasetReader, source: RasterSource, crs: CRS, grid: Grid, nodata: float | None
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
        resampling=Resampling.bilinear,
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
