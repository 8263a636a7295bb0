"""The point store of a scene folder: `points/tiles.bin` and `points/index.npy`.

Points are grouped into tiles of 20 m on the scene CRS grid. Inside a tile they run from coarse to fine, so any prefix
of a tile is the whole tile at a lower level of detail.
"""

from __future__ import annotations

import errno
import math
import mmap
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wayfix.errors import SceneCorrupt, SceneError, SceneNotFound, StorageFailed, StorageFull
from wayfix.geo.boxes import WorldBox

TILE_SIZE = 20.0
"""Side of a tile in metres; tile (ix, iy) spans [ix, ix + 1) x [iy, iy + 1) times this on the scene CRS grid."""

POINT = np.dtype([("xyz", "<f4", (3,)), ("rgb", "u1", (3,)), ("cls", "u1")])
"""One record of tiles.bin, 16 bytes: offset in metres from (ix * 20, iy * 20, z0), colour, ASPRS class."""

INDEX = np.dtype(
    [
        ("ix", "<i4"),
        ("iy", "<i4"),
        ("offset", "<i8"),
        ("count", "<i4"),
        ("z0", "<f8"),
        ("crc32", "<u4"),
        ("low", "<f4", (3,)),
        ("high", "<f4", (3,)),
    ]
)
"""One row per tile, in file order. `offset` counts points; `low` and `high` are the smallest and largest `xyz`."""

_ADVICE = "run `wayfix scene check` and re-import the scene"


@dataclass(frozen=True)
class Points:
    """Points read from a store: world position is origin + xyz."""

    xyz: NDArray[np.float32]
    """Offsets from `origin`, float32 (N, 3), metres."""
    origin: NDArray[np.float64]
    """Scene CRS coordinates, float64 (3,), metres."""
    rgb: NDArray[np.uint8]
    """uint8 (N, 3)."""
    classes: NDArray[np.uint8]
    """ASPRS classes, uint8 (N,)."""


@dataclass(frozen=True)
class TileSpans:
    """Undecoded prefixes of tiles: what a kernel needs to read them straight from the file mapping."""

    records: NDArray[np.void]
    """The whole store, POINT (count,), read-only; span i is records[start[i]:stop[i]]."""
    start: NDArray[np.int64]
    """(T,)"""
    stop: NDArray[np.int64]
    """(T,)"""
    origin: NDArray[np.float64]
    """World position of each tile's zero offset, float64 (T, 3), metres."""
    density: float
    """Points per square metre of ground in these spans; 0 where there are none."""


class PointStore:
    """A scene's points, read through a memory mapping; safe to share between threads."""

    def __init__(self, path: Path, index: NDArray[np.void], records: NDArray[np.void]) -> None:
        self._path = path
        self._index = index
        self._records = records
        self._verified = np.zeros(len(index), bool)  # two threads may both check a tile: harmless
        self._origin = np.column_stack([index["ix"] * TILE_SIZE, index["iy"] * TILE_SIZE, index["z0"]])
        self._low = self._origin + index["low"]
        self._high = self._origin + index["high"]

    @classmethod
    def open(cls, folder: Path) -> PointStore:
        """Open the store in `folder`; points are checked when they are read.

        Raises SceneNotFound where there is no such folder, SceneCorrupt where a file is missing or the two do not fit
        together, StorageFailed where they cannot be read.
        """
        if not folder.is_dir():
            raise SceneNotFound(f"{folder} is not a folder; a scene with points has one written by `wayfix import`")
        tiles, table = store_paths(folder)
        try:
            index = np.load(table, allow_pickle=False)
            with tiles.open("rb") as file:
                size = tiles.stat().st_size
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except FileNotFoundError as e:
            raise SceneCorrupt(f"{e.filename} is missing; {_ADVICE}") from e
        except (ValueError, EOFError) as e:
            raise SceneCorrupt(f"{table} is not a point index ({e}); {_ADVICE}") from e
        except OSError as e:
            raise storage_error(e, folder) from e
        _check_index(index, table, size, tiles)
        return cls(tiles, index, np.frombuffer(data, POINT))

    @property
    def count(self) -> int:
        """Number of points."""
        return len(self._records)

    @property
    def bounds(self) -> WorldBox:
        """The smallest box around all points, heights included."""
        low, high = self._low.min(axis=0), self._high.max(axis=0)
        return WorldBox(*(float(v) for v in (low[0], low[1], high[0], high[1], low[2], high[2])))

    @property
    def density(self) -> float:
        """Points per square metre of covered ground, over the whole store."""
        return self.count / self._ground_area(np.arange(len(self._index)))

    def spans(self, box: WorldBox, max_points: int | None = None) -> TileSpans:
        """The tiles whose points may lie in `box`, each cut to the same fraction, undecoded and uncropped.

        The fraction is chosen so that about `max_points` of their points lie inside the ground rectangle. Raises
        SceneCorrupt where a tile does not match its checksum.
        """
        rows = self._rows_in(box)
        stop = self._index["count"][rows].astype(np.int64)
        if max_points is not None:
            expected = float((stop * self._share_inside(rows, box)).sum())
            if expected > max_points:
                stop = np.ceil(stop * (max(max_points, 0) / expected)).astype(np.int64)
        for row in rows[~self._verified[rows]]:
            self._verify(int(row))
        start = self._index["offset"][rows]
        density = float(stop.sum()) / self._ground_area(rows) if len(rows) else 0.0
        return TileSpans(self._records, start, start + stop, self._origin[rows], density)

    def read(self, box: WorldBox, max_points: int | None = None, whole_tiles: bool = False) -> Points:
        """The points inside `box`, edges included, at most `max_points` of them.

        Where there are more, every tile gives the same fraction of its points, spread evenly. Heights of the box bound
        too where they are known. With `whole_tiles` nothing is cropped: all tiles that reach into the box are returned,
        under the same limit. Raises SceneCorrupt where a tile does not match its checksum.
        """
        spans = self.spans(box, None if whole_tiles else max_points)
        if len(spans.start) == 0:
            origin = np.array([box.min_x, box.min_y, box.min_z or 0.0])
            return Points(np.empty((0, 3), "f4"), origin, np.empty((0, 3), "u1"), np.empty(0, "u1"))
        origin = spans.origin.min(axis=0)
        low, high = _corners(box)
        parts: list[tuple[NDArray[np.float32], NDArray[np.void]]] = []
        for start, stop, base in zip(spans.start, spans.stop, spans.origin, strict=True):
            records = spans.records[start:stop]
            exact = records["xyz"] + base
            inside = np.ones(len(records), bool) if whole_tiles else ((exact >= low) & (exact <= high)).all(axis=1)
            parts.append(((exact - origin)[inside].astype(np.float32), records[inside]))
        total = sum(len(p[0]) for p in parts)
        if max_points is not None and total > max_points:
            # Rounding the running sums, not each tile's share, keeps the total exact however many tiles there are.
            running = np.cumsum([0] + [len(p[0]) for p in parts]) * max(max_points, 0) // total
            keep = np.diff(running)
            parts = [(x[:k], r[:k]) for (x, r), k in zip(parts, keep, strict=True)]
        kept = np.concatenate([r for _, r in parts])
        return Points(np.concatenate([x for x, _ in parts]), origin, kept["rgb"], kept["cls"])

    def check(self) -> Iterator[str]:
        """Verify every tile, also those already verified; yields one sentence per problem."""
        for row in range(len(self._index)):
            try:
                self._verify(row)
            except SceneCorrupt as e:
                yield str(e)

    def _verify(self, row: int) -> None:
        entry = self._index[row]
        start = int(entry["offset"])
        if zlib.crc32(self._records[start : start + int(entry["count"])].data) != entry["crc32"]:
            self._verified[row] = False
            tile = f"tile ({entry['ix']}, {entry['iy']})"
            raise SceneCorrupt(f"{tile} of {self._path} does not match its checksum; {_ADVICE}")
        self._verified[row] = True

    def _rows_in(self, box: WorldBox) -> NDArray[np.intp]:
        low, high = _corners(box)
        return np.flatnonzero(((self._low <= high) & (self._high >= low)).all(axis=1))

    def _share_inside(self, rows: NDArray[np.intp], box: WorldBox) -> NDArray[np.float64]:
        """The part of each tile's ground rectangle that lies in the box, 0..1."""
        low, high = _corners(box)
        inside = np.minimum(self._high[rows], high)[:, :2] - np.maximum(self._low[rows], low)[:, :2]
        size = (self._high - self._low)[rows, :2]
        return np.divide(inside, size, out=np.ones_like(size), where=size > 0).prod(axis=1)

    def _ground_area(self, rows: NDArray[np.intp]) -> float:
        """Square metres covered by the points of these tiles; at least 1, as a lone point has no area."""
        return max(float((self._high - self._low)[rows, :2].prod(axis=1).sum()), 1.0)


def store_paths(folder: Path) -> tuple[Path, Path]:
    """The files of a store: the tiles and their index."""
    return folder / "tiles.bin", folder / "index.npy"


def _corners(box: WorldBox) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    low = [box.min_x, box.min_y, -math.inf if box.min_z is None else box.min_z]
    high = [box.max_x, box.max_y, math.inf if box.max_z is None else box.max_z]
    return np.array(low), np.array(high)


def _check_index(index: NDArray[np.void], table: Path, size: int, tiles: Path) -> None:
    if index.dtype != INDEX or index.ndim != 1 or len(index) == 0:
        raise SceneCorrupt(f"{table} is not a point index of this version; {_ADVICE}")
    ends = np.cumsum(index["count"], dtype=np.int64)
    finite = np.isfinite(index["z0"]).all() and np.isfinite(index["low"]).all() and np.isfinite(index["high"]).all()
    if not finite or (index["count"] <= 0).any() or (index["offset"] != ends - index["count"]).any():
        raise SceneCorrupt(f"{table} is inconsistent; {_ADVICE}")
    if size != ends[-1] * POINT.itemsize:
        raise SceneCorrupt(f"{tiles} has {size} bytes where its index expects {ends[-1] * POINT.itemsize}; {_ADVICE}")


def storage_error(error: OSError, folder: Path) -> SceneError:
    """The named error for a failed read or write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"no space left for {folder}; free some or choose another disk")
    return StorageFailed(f"cannot read or write {folder}: {error.strerror or error}")
