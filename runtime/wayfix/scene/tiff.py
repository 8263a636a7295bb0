"""The scene's rasters: cloud-optimized GeoTIFFs whose tiles are checked by CRC the first time each is read.

GDAL finds the tiles; the photo's are then read and decoded here, since that halves the time of a zoom
(docs/benchmarks). Heights are decoded by GDAL after the same check.
"""

from __future__ import annotations

import os
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.errors import RasterioError
from rasterio.windows import Window

from wayfix.errors import SceneCorrupt
from wayfix.geo.boxes import WorldBox


@dataclass(frozen=True)
class Level:
    """One resolution of a raster: level 0 is the full one, each further one about half as wide."""

    width: int
    height: int
    rows: int
    """Tiles from top to bottom."""
    columns: int
    """Tiles from left to right."""
    first_tile: int
    """Index of this level's upper left tile in the table of checksums."""


def tile_table(path: Path) -> NDArray[np.uint32]:
    """CRC-32 of every tile of a tiled TIFF, level by level and row by row, as written next to it at import."""
    with _TileFile(path) as tiles:
        crcs = [
            zlib.crc32(tiles.raw(level, row, column))
            for level, size in enumerate(tiles.levels)
            for row in range(size.rows)
            for column in range(size.columns)
        ]
    return np.array(crcs, np.uint32)


class _TileFile:
    """Levels, tile offsets and raw tile bytes of one open TIFF; safe to share between threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        try:
            self.dataset = rasterio.open(path)
            self._descriptor = os.open(path, os.O_RDONLY)
        except (RasterioError, OSError) as error:
            raise SceneCorrupt(f"{path} cannot be opened: {error}; import the scene again") from error
        self.tile_size = self.dataset.block_shapes[0][0]
        self.levels = self._find_levels()
        self._offsets: dict[tuple[int, int, int], tuple[int, int]] = {}

    def _find_levels(self) -> list[Level]:
        levels: list[Level] = []
        first = 0
        # GDAL sizes overviews by ceiling division.
        for factor in (1, *self.dataset.overviews(1)):
            width, height = -(-self.dataset.width // factor), -(-self.dataset.height // factor)
            rows, columns = -(-height // self.tile_size), -(-width // self.tile_size)
            levels.append(Level(width, height, rows, columns, first))
            first += rows * columns
        return levels

    def raw(self, level: int, row: int, column: int) -> bytes:
        """The compressed bytes of a tile; empty for one that was never written."""
        key = (level, row, column)
        where = self._offsets.get(key)
        if where is None:
            options = {"bidx": 1} if level == 0 else {"bidx": 1, "ovr": level - 1}
            with self.lock:
                offset = self.dataset.get_tag_item(f"BLOCK_OFFSET_{column}_{row}", "TIFF", **options)
                size = self.dataset.get_tag_item(f"BLOCK_SIZE_{column}_{row}", "TIFF", **options)
            where = (int(offset or 0), int(size or 0))
            self._offsets[key] = where
        return os.pread(self._descriptor, where[1], where[0]) if where[1] else b""

    def close(self) -> None:
        self.dataset.close()
        os.close(self._descriptor)

    def __enter__(self) -> _TileFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class CheckedTiff:
    """A raster of a scene. Every tile is compared with its checksum before its first use."""

    def __init__(self, path: Path, crcs: NDArray[np.uint32]) -> None:
        self._tiles = _TileFile(path)
        self._crcs = crcs
        expected = self.levels[-1].first_tile + self.levels[-1].rows * self.levels[-1].columns
        if len(crcs) != expected:
            raise SceneCorrupt(f"{path} has {expected} tiles, its checksums {len(crcs)}; import the scene again")
        self._verified = np.zeros(expected, bool)
        left, bottom, right, top = self._tiles.dataset.bounds
        self.extent = WorldBox(left, bottom, right, top)

    @property
    def path(self) -> Path:
        """The file."""
        return self._tiles.path

    @property
    def levels(self) -> list[Level]:
        """All resolutions, the full one first."""
        return self._tiles.levels

    @property
    def gsd(self) -> float:
        """Ground sampling distance of the full resolution, metres per pixel."""
        return self.extent.width / self.levels[0].width

    def tile_bytes(self, level: int, row: int, column: int) -> bytes:
        """Compressed bytes of one tile, verified; SceneCorrupt where they are not what was written."""
        data = self._tiles.raw(level, row, column)
        index = self.levels[level].first_tile + row * self.levels[level].columns + column
        if not self._verified[index]:
            if zlib.crc32(data) != self._crcs[index]:
                raise SceneCorrupt(
                    f"{self.path}: tile (level {level}, row {row}, column {column}) does not match its checksum; "
                    "run `wayfix scene check` to see what else is damaged, then import the scene again"
                )
            self._verified[index] = True
        return data

    def problems(self) -> list[str]:
        """Every damaged tile, read anew, as text."""
        found = []
        for level, size in enumerate(self.levels):
            for row in range(size.rows):
                for column in range(size.columns):
                    index = size.first_tile + row * size.columns + column
                    if zlib.crc32(self._tiles.raw(level, row, column)) != self._crcs[index]:
                        found.append(f"{self.path.name}: tile (level {level}, row {row}, column {column}) is damaged")
        return found

    def close(self) -> None:
        """Close the file."""
        self._tiles.close()


class BevPyramid(CheckedTiff):
    """The bird's-eye photo at all its resolutions."""

    def __init__(self, path: Path, crcs: NDArray[np.uint32]) -> None:
        super().__init__(path, crcs)
        tables = self._tiles.dataset.get_tag_item("JPEGTABLES", "TIFF", bidx=1)
        # A TIFF keeps the JPEG tables once: each tile is a stream without them. SOI and EOI are cut where they join.
        self._tables = bytes.fromhex(tables)[:-2] if tables else b""

    def level_for(self, metres_per_pixel: float) -> int:
        """The coarsest level with at least 95 % of the resolution asked for; 0 where none has.

        The 5 % are not to be seen, and spare decoding four times the pixels when a crop is just under twice as wide.
        """
        chosen = 0
        for index, level in enumerate(self.levels):
            if self.extent.width / level.width * 0.95 <= metres_per_pixel:
                chosen = index
        return chosen

    def read(self, level: int, column: int, row: int, columns: int, rows: int) -> NDArray[np.uint8]:
        """RGB pixels (rows, columns, 3) of a window that lies inside the level."""
        size = self._tiles.tile_size
        out = np.empty((rows, columns, 3), np.uint8)
        for tile_row in range(row // size, (row + rows - 1) // size + 1):
            for tile_column in range(column // size, (column + columns - 1) // size + 1):
                tile = self._decode(level, tile_row, tile_column)
                top, left = tile_row * size, tile_column * size
                r0, r1 = max(row, top), min(row + rows, top + size)
                c0, c1 = max(column, left), min(column + columns, left + size)
                out[r0 - row : r1 - row, c0 - column : c1 - column] = tile[r0 - top : r1 - top, c0 - left : c1 - left]
        return out

    def _decode(self, level: int, row: int, column: int) -> NDArray[np.uint8]:
        data = self.tile_bytes(level, row, column)
        if not data:
            size = self._tiles.tile_size
            return np.zeros((size, size, 3), np.uint8)
        stream = np.frombuffer(self._tables + data[2:] if self._tables else data, np.uint8)
        tile = cv2.imdecode(stream, cv2.IMREAD_COLOR_RGB)
        if tile is None:
            raise SceneCorrupt(
                f"{self.path}: tile (level {level}, row {row}, column {column}) is no JPEG; import again"
            )
        return tile


class HeightGrid(CheckedTiff):
    """Heights in metres (float32), NaN where none are known."""

    def window(self, box: WorldBox) -> NDArray[np.float32]:
        """All cells a box touches, (rows, columns); empty where it lies outside the grid."""
        level = self.levels[0]
        gsd_y = self.extent.height / level.height
        c0 = max(0, int(np.floor((box.min_x - self.extent.min_x) / self.gsd)))
        c1 = min(level.width, int(np.ceil((box.max_x - self.extent.min_x) / self.gsd)))
        r0 = max(0, int(np.floor((self.extent.max_y - box.max_y) / gsd_y)))
        r1 = min(level.height, int(np.ceil((self.extent.max_y - box.min_y) / gsd_y)))
        if c0 >= c1 or r0 >= r1:
            return np.empty((0, 0), np.float32)
        return self._read(c0, r0, c1 - c0, r1 - r0)

    def resampled(self, extent: WorldBox, width: int, height: int) -> NDArray[np.float32]:
        """Heights at the pixel centres of a north-up image of `extent`, bilinear, NaN outside; (height, width)."""
        margin = extent.grown(2 * self.gsd)
        cells = self.window(margin)
        if cells.size == 0:
            return np.full((height, width), np.nan, np.float32)
        level = self.levels[0]
        gsd_y = self.extent.height / level.height
        c0 = max(0, int(np.floor((margin.min_x - self.extent.min_x) / self.gsd)))
        r0 = max(0, int(np.floor((self.extent.max_y - margin.max_y) / gsd_y)))
        xs = extent.min_x + (np.arange(width) + 0.5) * (extent.width / width)
        ys = extent.max_y - (np.arange(height) + 0.5) * (extent.height / height)
        columns = ((xs - self.extent.min_x) / self.gsd - 0.5 - c0).astype(np.float32)
        rows = ((self.extent.max_y - ys) / gsd_y - 0.5 - r0).astype(np.float32)
        map_x, map_y = np.meshgrid(columns, rows)
        heights = cv2.remap(cells, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        # Within half a cell of the edge the outermost heights serve; beyond it nothing is known.
        heights[:, (xs < self.extent.min_x) | (xs > self.extent.max_x)] = np.nan
        heights[(ys < self.extent.min_y) | (ys > self.extent.max_y)] = np.nan
        return heights

    def _read(self, column: int, row: int, columns: int, rows: int) -> NDArray[np.float32]:
        size = self._tiles.tile_size
        for tile_row in range(row // size, (row + rows - 1) // size + 1):
            for tile_column in range(column // size, (column + columns - 1) // size + 1):
                self.tile_bytes(0, tile_row, tile_column)
        with self._tiles.lock:
            try:
                cells = self._tiles.dataset.read(1, window=Window(column, row, columns, rows))
            except RasterioError as error:
                raise SceneCorrupt(f"{self.path} cannot be read: {error}; import the scene again") from error
        return cells
