"""A cloud of any size becomes point tiles, a photo from above, and surface and ground heights.

1. Points are sorted into buckets (buckets.py).  2. Each bucket gives its point tiles and its part of the rasters.
3. The rasters' small holes are filled, the ground is found where no class tells it, and all become GeoTIFFs that the
importer treats like any other photo or heights. Every step is recorded in the journal and can be done again.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import shapely
from affine import Affine
from numpy.typing import NDArray
from pyproj import CRS
from rasterio.windows import Window
from shapely.geometry.base import BaseGeometry
from tqdm import tqdm

from wayfix.errors import NoOverlap
from wayfix.geo.boxes import WorldBox
from wayfix.scene.buckets import BucketPoints, Buckets, PlacedCloud, bucket_size
from wayfix.scene.journal import Journal
from wayfix.scene.point_writer import PointWriter
from wayfix.scene.points import INDEX as _INDEX
from wayfix.scene.surface import (
    GROUND_CLASS,
    GROUND_REACH_M,
    SMALL_HOLE_PX,
    cloth_ground,
    fill_ground,
    fill_small_holes,
    hillshade,
    splat_low,
    splat_top,
)

HEIGHT_GSD_M = 0.5
GSD_STEPS_M = (0.05, 0.1, 0.125, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Each divides or is a multiple of HEIGHT_GSD_M, and every bucket side is a multiple of it."""

GSD_PER_SPACING = 0.75
"""Pixels a little smaller than the mean point spacing: most hold a point, and the filled holes stay few."""

_BLOCK_ROWS = 480
_GROUND_BLOCK_M = 800.0


@dataclass(frozen=True)
class CloudLayers:
    """What a cloud gave: rasters in the scene's CRS, and the finished folder points/."""

    photo: Path
    dsm: Path
    dtm: Path
    density: float
    """Points per square metre where most of them are."""
    colored: bool
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class _Grids:
    """The photo's grid, and that of the heights, whose cells are `factor` photo pixels wide."""

    min_x: float
    max_y: float
    gsd: float
    width: int
    height: int
    factor: int

    @property
    def height_gsd(self) -> float:
        return self.gsd * self.factor


class CloudImport:
    """Builds the layers of some clouds in an import's temporary folder."""

    def __init__(
        self,
        clouds: Sequence[PlacedCloud],
        crs: CRS,
        extent: WorldBox,
        area: BaseGeometry | None,
        folder: Path,
        journal: Journal,
        quiet: bool,
    ) -> None:
        """`extent` and the polygon `area` (scene CRS) limit what is taken."""
        self.clouds = clouds
        self.crs = crs
        self.area = area
        self.folder = folder
        self.work = folder / "cloud"
        self.journal = journal
        self.quiet = quiet
        self.classified = any(c.source.classified for c in clouds)
        self.work.mkdir(exist_ok=True)
        self.buckets = Buckets(self.work / "buckets", bucket_size(clouds), extent, journal)

    def build(self) -> CloudLayers:
        """Do what is not yet done. Raises NoOverlap where no point lies in the extent."""
        self.buckets.fill(self.clouds, self.quiet)
        if sum(self.buckets.kept) == 0:
            raise NoOverlap("no point of the clouds lies in the scene's extent; are they of another place?")
        grids = self._grids()
        self._rasterize(grids)
        if self.journal.get("cloud_photo") is None:
            self._write_surface(grids)
            self.journal.put("cloud_photo", True)
        if self.journal.get("cloud_ground") is None:
            self._write_ground(grids)
            self.journal.put("cloud_ground", True)
        return CloudLayers(
            self.work / "photo.tif",
            self.work / "dsm.tif",
            self.work / "dtm.tif",
            float(self.journal.get("cloud_grids")["density"]),
            self.colored,
            tuple(self._remarks()),
        )

    @property
    def colored(self) -> bool:
        """Whether any cloud has colours or intensities."""
        return any(c.source.color != "none" for c in self.clouds)

    def remove_work(self) -> None:
        """Drop the intermediate files once the scene's own layers are written."""
        shutil.rmtree(self.work, ignore_errors=True)

    def _remarks(self) -> Iterator[str]:
        for cloud, kept in zip(self.clouds, self.buckets.kept, strict=True):
            if kept < cloud.source.count:
                left = cloud.source.count - kept
                yield f"{left} points of {cloud.source.path.name} are noise or lie outside the scene and were left out"
        duplicates = int(self.journal.get("tiles")["duplicates"])
        if duplicates:
            yield f"{duplicates} points were there twice with the same position, colour and class; one of each was kept"
        if not self.colored:
            yield "the clouds have no colours: the photo is a shading of the surface"

    def _grids(self) -> _Grids:
        """Decided once, from the points that are there; the same in every run."""
        known = self.journal.get("cloud_grids")
        if known is None:
            density = self.buckets.density()
            wanted = GSD_PER_SPACING / math.sqrt(density)
            gsd = next((step for step in GSD_STEPS_M if step >= wanted), GSD_STEPS_M[-1])
            factor = max(1, round(HEIGHT_GSD_M / gsd))
            cell = gsd * factor
            size = self.buckets.size
            names = self.buckets.names()
            e = self.buckets.extent
            x0 = max(min(ix for ix, _ in names) * size, math.floor(e.min_x / cell) * cell)
            x1 = min(max(ix + 1 for ix, _ in names) * size, math.ceil(e.max_x / cell) * cell)
            y0 = max(min(iy for _, iy in names) * size, math.floor(e.min_y / cell) * cell)
            y1 = min(max(iy + 1 for _, iy in names) * size, math.ceil(e.max_y / cell) * cell)
            width, height = round((x1 - x0) / cell) * factor, round((y1 - y0) / cell) * factor
            known = {"min_x": x0, "max_y": y1, "gsd": gsd, "width": width, "height": height, "factor": factor}
            grids = _Grids(**known)
            self._top(grids).create(np.nan)
            self._color(grids).create(0)
            self._low(grids).create(np.nan)
            self.journal.put("cloud_grids", {**known, "density": density})
        return _Grids(**{key: known[key] for key in ("min_x", "max_y", "gsd", "width", "height", "factor")})

    def _top(self, g: _Grids) -> _RawGrid:
        return _RawGrid(self.work / "top.raw", (g.height, g.width), np.float32)

    def _color(self, g: _Grids) -> _RawGrid:
        return _RawGrid(self.work / "color.raw", (g.height, g.width, 3), np.uint8)

    def _low(self, g: _Grids) -> _RawGrid:
        return _RawGrid(self.work / "low.raw", (g.height // g.factor, g.width // g.factor), np.float32)

    def _rasterize(self, grids: _Grids) -> None:
        """Every bucket's tiles and its part of the rasters; buckets meet at cell edges, so none touches another's."""
        names = self.buckets.names()
        state = self.journal.get("tiles", {"done": 0, "duplicates": 0})
        done = int(state["done"])
        if done > len(names):
            return
        points = self.folder / "points"
        points.mkdir(exist_ok=True)
        rows = [np.load(self.work / f"rows_{n}.npy") for n in range(done)]
        writer = PointWriter(points, np.concatenate(rows) if rows else None)
        with tqdm(total=len(names), initial=done, desc="tiles", unit="bucket", leave=False,
                  disable=True if self.quiet else None) as bar:  # fmt: skip
            for n in range(done, len(names)):
                bucket = self._inside_area(self.buckets.read(*names[n]))
                added = writer.add(bucket.xyz, bucket.rgb, bucket.classes) if len(bucket.xyz) else np.zeros(0, _INDEX)
                np.save(self.work / f"rows_{n}.npy", added)
                self._draw(grids, names[n], bucket)
                state = {"done": n + 1, "duplicates": state["duplicates"] + bucket.duplicates}
                self.journal.put("tiles", state)
                bar.update(1)
        writer.finish()
        if writer.count == 0:
            raise NoOverlap("no point of the clouds lies in the area; are they of another place?")
        self.journal.put("tiles", {**state, "done": len(names) + 1})

    def _inside_area(self, bucket: BucketPoints) -> BucketPoints:
        if self.area is None:
            return bucket
        inside = shapely.contains_xy(self.area, bucket.xyz[:, 0], bucket.xyz[:, 1])
        return BucketPoints(bucket.xyz[inside], bucket.rgb[inside], bucket.classes[inside], bucket.duplicates)

    def _draw(self, g: _Grids, name: tuple[int, int], bucket: BucketPoints) -> None:
        size = self.buckets.size
        c0 = max(0, round((name[0] * size - g.min_x) / g.gsd))
        c1 = min(g.width, round(((name[0] + 1) * size - g.min_x) / g.gsd))
        r0 = max(0, round((g.max_y - (name[1] + 1) * size) / g.gsd))
        r1 = min(g.height, round((g.max_y - name[1] * size) / g.gsd))
        x, y, z = bucket.xyz[:, 0], bucket.xyz[:, 1], bucket.xyz[:, 2]
        top = np.full((r1 - r0, c1 - c0), np.nan, np.float32)
        color = np.zeros((r1 - r0, c1 - c0, 3), np.uint8)
        columns = np.floor((x - g.min_x) / g.gsd + 1e-9).astype(np.int64) - c0
        rows = np.ceil((g.max_y - y) / g.gsd - 1e-9).astype(np.int64) - 1 - r0
        splat_top(columns, rows, z, np.ascontiguousarray(bucket.rgb), top, color)
        self._top(g).write(r0, c0, top)
        self._color(g).write(r0, c0, color)
        low = np.full(((r1 - r0) // g.factor, (c1 - c0) // g.factor), np.nan, np.float32)
        chosen = bucket.classes == GROUND_CLASS if self.classified else np.ones(len(z), bool)
        splat_low(columns[chosen] // g.factor, rows[chosen] // g.factor, z[chosen], low)
        self._low(g).write(r0 // g.factor, c0 // g.factor, low)

    def _write_surface(self, g: _Grids) -> None:
        """photo.tif and dsm.tif from the raw rasters, small holes filled, block by block."""
        top, color = self._top(g), self._color(g)
        rows_per_block = _BLOCK_ROWS // g.factor * g.factor
        photo = self._open("photo.tif", g.gsd, g, count=3, dtype="uint8", photometric="RGB")
        dsm = self._open("dsm.tif", g.height_gsd, g, count=1, dtype="float32", nodata=math.nan)
        with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), photo as photo_file, dsm as dsm_file:
            for row in range(0, g.height, rows_per_block):
                stop = min(row + rows_per_block, g.height)
                a, b = max(0, row - SMALL_HOLE_PX), min(g.height, stop + SMALL_HOLE_PX)
                heights, rgb = fill_small_holes(top.read(a, b), color.read(a, b), SMALL_HOLE_PX)
                if not self.colored:
                    rgb = np.repeat(hillshade(heights, g.gsd)[..., None], 3, axis=2)
                heights, rgb = heights[row - a : stop - a], rgb[row - a : stop - a]
                window = Window(0, row, g.width, stop - row)
                photo_file.write(np.ascontiguousarray(rgb.transpose(2, 0, 1)), window=window)
                photo_file.write_mask(np.isfinite(heights), window=window)
                cells = _pooled(heights, g.factor)
                dsm_file.write(cells, 1, window=Window(0, row // g.factor, cells.shape[1], cells.shape[0]))

    def _write_ground(self, g: _Grids) -> None:
        """dtm.tif: ground by class or cloth, interpolated under what stands on it, null where no surface is known."""
        low, cell = self._low(g), g.height_gsd
        height, width = low.shape[:2]
        step, halo = round(_GROUND_BLOCK_M / cell), math.ceil(1.5 * GROUND_REACH_M / cell)
        blocks = [(r, c) for r in range(0, height, step) for c in range(0, width, step)]
        with (
            rasterio.open(self.work / "dsm.tif") as dsm,
            self._open("dtm.tif", cell, g, count=1, dtype="float32", nodata=math.nan) as out,
            tqdm(blocks, desc="ground", unit="block", leave=False, disable=True if self.quiet else None) as bar,
        ):
            for r, c in bar:
                r1, c1 = min(r + step, height), min(c + step, width)
                ra, rb, ca, cb = max(0, r - halo), min(height, r1 + halo), max(0, c - halo), min(width, c1 + halo)
                ground = low.read(ra, rb, ca, cb)
                if not self.classified:
                    ground = cloth_ground(ground, cell)
                filled = fill_ground(ground, cell)[r - ra : r1 - ra, c - ca : c1 - ca]
                window = Window(c, r, c1 - c, r1 - r)
                filled[~np.isfinite(dsm.read(1, window=window))] = np.nan
                out.write(filled, 1, window=window)

    def _open(self, name: str, gsd: float, g: _Grids, **options: Any) -> rasterio.io.DatasetWriter:
        return rasterio.open(
            self.work / name,
            "w",
            driver="GTiff",
            width=round(g.width * g.gsd / gsd),
            height=round(g.height * g.gsd / gsd),
            crs=rasterio.CRS.from_wkt(self.crs.to_wkt()),
            transform=Affine(gsd, 0, g.min_x, 0, -gsd, g.max_y),
            tiled=True,
            BIGTIFF="IF_SAFER",
            **options,
        )


def _pooled(heights: NDArray[np.float32], factor: int) -> NDArray[np.float32]:
    """The highest of every factor x factor pixels, NaN where none is known."""
    rows, columns = heights.shape[0] // factor, heights.shape[1] // factor
    filled = np.where(np.isfinite(heights), heights, np.float32(-np.inf))
    best = filled.reshape(rows, factor, columns, factor).max(axis=(1, 3))
    return np.where(np.isfinite(best), best, np.float32(np.nan))


class _RawGrid:
    """A plain array in a file, read and written by windows; mapped only while it is touched."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        self.path = path
        self.shape = shape
        self.dtype = np.dtype(dtype)

    def create(self, value: float) -> None:
        """Fill the whole with one value."""
        row = np.full(self.shape[1:], value, self.dtype).tobytes()
        with self.path.open("wb") as stream:
            for _ in range(self.shape[0]):
                stream.write(row)

    def read(self, r0: int, r1: int, c0: int = 0, c1: int | None = None) -> NDArray:
        """A copy of rows r0..r1 and columns c0..c1."""
        mapped = np.memmap(self.path, self.dtype, "r", shape=self.shape)
        return np.array(mapped[r0:r1, c0:c1])

    def write(self, r0: int, c0: int, part: NDArray) -> None:
        """Write a window."""
        mapped = np.memmap(self.path, self.dtype, "r+", shape=self.shape)
        mapped[r0 : r0 + part.shape[0], c0 : c0 + part.shape[1]] = part
        mapped.flush()
