"""Several photos or height rasters become one: which of them tells a pixel, and on which grid.

Photo over cloud for what is seen from above; for heights the finer raster, and coarser ones where it knows nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import rasterio.features
from affine import Affine
from numpy.typing import NDArray
from pyproj import CRS
from shapely.geometry.base import BaseGeometry

from wayfix.geo.boxes import WorldBox
from wayfix.scene.readers.raster import BLOCK_ROWS, Grid, RasterOnGrid, RasterSource


@dataclass(frozen=True)
class HeightSource:
    """A checked height raster of an import."""

    raster: RasterSource
    extent: WorldBox
    """Where it lies, scene CRS."""
    unit_m: float
    accuracy_m: float | None


def photo_blocks(
    sources: Sequence[RasterSource], crs: CRS, grid: Grid, area: BaseGeometry | None
) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]:
    """Row blocks on the grid: first row, RGB (3, rows, width), mask (rows, width; 255 valid). Earlier sources win."""
    with contextlib.ExitStack() as stack:
        rasters = [stack.enter_context(RasterOnGrid(s, crs, grid, heights=False)) for s in sources]
        for row, rows in _row_blocks(grid):
            rgb, mask = rasters[0].photo(row, rows)
            for raster in rasters[1:]:
                if mask.all():
                    break
                below, known = raster.photo(row, rows)
                gaps = (mask == 0) & (known > 0)
                rgb[:, gaps], mask[gaps] = below[:, gaps], 255
            if area is not None:
                mask = np.where(_outside(area, grid, row, rows), 0, mask).astype(np.uint8)
                rgb[:, mask == 0] = 0
            yield row, rgb, mask


def height_blocks(
    sources: Sequence[HeightSource], crs: CRS, grid: Grid, area: BaseGeometry | None
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Row blocks on the grid: first row, metres (rows, width), NaN where no source knows. Earlier sources win."""
    with contextlib.ExitStack() as stack:
        rasters = [stack.enter_context(RasterOnGrid(s.raster, crs, grid, heights=True)) for s in sources]
        for row, rows in _row_blocks(grid):
            cells = np.full((rows, grid[1]), np.nan, np.float32)
            for source, raster in zip(sources, rasters, strict=True):
                unknown = ~np.isfinite(cells)
                if not unknown.any():
                    break
                cells[unknown] = (raster.heights(row, rows) * np.float32(source.unit_m))[unknown]
            if area is not None:
                cells[_outside(area, grid, row, rows)] = np.nan
            yield row, cells


def finest_first(sources: Sequence[HeightSource]) -> list[HeightSource]:
    """In the order in which they tell a cell."""
    return sorted(sources, key=lambda s: s.raster.gsd)


def height_grid(sources: Sequence[HeightSource], scene: WorldBox) -> Grid:
    """The finest source's cells, over what all sources together cover of the scene."""
    finest = finest_first(sources)[0]
    gsd = finest.raster.gsd
    parts = [part for s in sources if (part := s.extent.clipped(scene)) is not None]
    min_x, min_y = min(p.min_x for p in parts), min(p.min_y for p in parts)
    max_x, max_y = max(p.max_x for p in parts), max(p.max_y for p in parts)
    anchor = finest.extent
    x0 = anchor.min_x + math.floor((min_x - anchor.min_x) / gsd + 1e-6) * gsd
    y1 = anchor.max_y - math.floor((anchor.max_y - max_y) / gsd + 1e-6) * gsd
    width, height = math.ceil((max_x - x0) / gsd - 1e-6), math.ceil((y1 - min_y) / gsd - 1e-6)
    return WorldBox(x0, y1 - height * gsd, x0 + width * gsd, y1), width, height


def cropped(grid: Grid, box: WorldBox) -> Grid:
    """The part of a grid that a box touches, in whole pixels."""
    extent, width, height = grid
    gsd = extent.width / width
    c0 = max(0, math.floor((box.min_x - extent.min_x) / gsd + 1e-6))
    c1 = min(width, math.ceil((box.max_x - extent.min_x) / gsd - 1e-6))
    r0 = max(0, math.floor((extent.max_y - box.max_y) / gsd + 1e-6))
    r1 = min(height, math.ceil((extent.max_y - box.min_y) / gsd - 1e-6))
    x0, y1 = extent.min_x + c0 * gsd, extent.max_y - r0 * gsd
    return WorldBox(x0, y1 - (r1 - r0) * gsd, x0 + (c1 - c0) * gsd, y1), c1 - c0, r1 - r0


def _row_blocks(grid: Grid) -> Iterator[tuple[int, int]]:
    for row in range(0, grid[2], BLOCK_ROWS):
        yield row, min(BLOCK_ROWS, grid[2] - row)


def _outside(area: BaseGeometry, grid: Grid, row: int, rows: int) -> NDArray[np.bool_]:
    extent, width, height = grid
    gsd = extent.height / height
    transform = Affine(gsd, 0, extent.min_x, 0, -gsd, extent.max_y - row * gsd)
    return rasterio.features.geometry_mask([area], (rows, width), transform)
