"""Writes a point store: tiles in the order they come, each from coarse to fine."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wayfix.errors import InvalidHeights, UnreadableSource
from wayfix.scene.points import INDEX, POINT, TILE_SIZE, storage_error, store_paths

_FINEST_VOXELS = 1024  # along a tile's side: voxels of 2 cm, finer than surveys are accurate
_BITS = 21  # of a voxel number per axis in a 63-bit Morton code


def write_points(folder: Path, xyz: NDArray[np.float64], rgb: NDArray[np.uint8], classes: NDArray[np.uint8]) -> None:
    """Write a point store into `folder`, which is created where missing.

    xyz: float64 (N, 3), scene CRS, metres. rgb: uint8 (N, 3). classes: uint8 (N,), ASPRS. The result depends on the
    points and their order only. Raises UnreadableSource for empty, mismatched or non-finite input, InvalidHeights for
    heights that are not finite, StorageFull or StorageFailed; on failure neither file is left behind.
    """
    xyz, rgb, classes = _checked(xyz, rgb, classes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writer = PointWriter(folder)
        writer.add(xyz, rgb, classes)
        writer.finish()
    except OSError as e:
        for path in store_paths(folder):
            if path.is_file():
                path.unlink()
        raise storage_error(e, folder) from e


class PointWriter:
    """Appends tiles to a store. What is added at once must hold its tiles whole."""

    def __init__(self, folder: Path, rows: NDArray[np.void] | None = None) -> None:
        """Start a store in an existing folder, or go on after the tiles of which `rows` is the index."""
        self._folder = folder
        self._rows = [] if rows is None or len(rows) == 0 else [rows]
        self._count = 0 if rows is None else int(rows["count"].sum())
        path = store_paths(folder)[0]
        self._file = path.open("r+b" if path.exists() else "w+b")
        # What an interrupted run wrote after its last complete step is written again.
        self._file.truncate(self._count * POINT.itemsize)
        self._file.seek(0, os.SEEK_END)

    @property
    def count(self) -> int:
        """Points written."""
        return self._count

    def add(self, xyz: NDArray[np.float64], rgb: NDArray[np.uint8], classes: NDArray[np.uint8]) -> NDArray[np.void]:
        """Write all tiles of some points (world metres (N, 3), uint8 (N, 3), uint8 (N,)); returns their index rows."""
        cells = np.floor(xyz[:, :2] / TILE_SIZE).astype(np.int64)
        order = np.lexsort((cells[:, 0], cells[:, 1]))
        sorted_cells = cells[order]
        changes = np.flatnonzero((np.diff(sorted_cells, axis=0) != 0).any(axis=1)) + 1
        starts = np.concatenate(([0], changes, [len(order)]))
        rows = np.zeros(len(starts) - 1, INDEX)
        for row, begin, end in zip(rows, starts[:-1], starts[1:], strict=True):
            chosen = order[begin:end]
            ix, iy = sorted_cells[begin]
            tile, row["z0"] = _encode(xyz[chosen], rgb[chosen], classes[chosen], int(ix), int(iy))
            data = tile.tobytes()
            self._file.write(data)
            row["ix"], row["iy"], row["offset"], row["count"] = ix, iy, self._count, len(tile)
            row["low"], row["high"] = tile["xyz"].min(axis=0), tile["xyz"].max(axis=0)
            row["crc32"] = zlib.crc32(data)
            self._count += len(tile)
        self._rows.append(rows)
        self._file.flush()
        return rows

    def finish(self) -> None:
        """Write the index and close the store."""
        self._file.close()
        rows = np.concatenate(self._rows) if self._rows else np.zeros(0, INDEX)
        np.save(store_paths(self._folder)[1], rows, allow_pickle=False)


def _checked(
    xyz: NDArray[np.float64], rgb: NDArray[np.uint8], classes: NDArray[np.uint8]
) -> tuple[NDArray[np.float64], NDArray[np.uint8], NDArray[np.uint8]]:
    xyz, rgb, classes = np.asarray(xyz), np.asarray(rgb), np.asarray(classes)
    if xyz.ndim != 2 or xyz.shape[1] != 3 or xyz.dtype.kind not in "fiu":
        raise UnreadableSource(f"points are numbers (N, 3); got {xyz.dtype} {xyz.shape}")
    n = len(xyz)
    if n == 0:
        raise UnreadableSource("a point store needs at least one point, got none; is the point cloud empty?")
    for name, array, shape in (("colours", rgb, (n, 3)), ("classes", classes, (n,))):
        if array.dtype != np.uint8 or array.shape != shape:
            raise UnreadableSource(f"{name} of {n} points are uint8 {shape}; got {array.dtype} {array.shape}")
    if not np.isfinite(xyz[:, 2]).all():
        raise InvalidHeights("point heights must be finite numbers; remove points without a height before the import")
    if not (np.abs(xyz[:, :2]) < 2**31 * TILE_SIZE).all():  # also false for NaN
        raise UnreadableSource("point coordinates must be finite metres in the scene CRS; is the file damaged?")
    return xyz.astype(np.float64, copy=False), rgb, classes


def _encode(
    xyz: NDArray[np.float64], rgb: NDArray[np.uint8], classes: NDArray[np.uint8], ix: int, iy: int
) -> tuple[NDArray[np.void], float]:
    """One tile's records, coarse to fine, and its z0."""
    z0 = float(xyz[:, 2].min())
    tile = np.empty(len(xyz), POINT)
    tile["xyz"] = xyz - (ix * TILE_SIZE, iy * TILE_SIZE, z0)
    tile["rgb"], tile["cls"] = rgb, classes
    return tile[_coarse_to_fine(tile["xyz"])], z0


def _coarse_to_fine(xyz: NDArray[np.float32]) -> NDArray[np.intp]:
    """An order in which the first points are one per coarse voxel, the next one per voxel half that size, and so on.

    Along a Morton curve the points of any voxel of any size are neighbours, so a point is the first of its voxel
    exactly where its code differs from the one before at that voxel's bits or above.
    """
    voxels = np.clip(xyz * (_FINEST_VOXELS / TILE_SIZE), 0, 2**_BITS - 1).astype(np.uint64)
    code = _spread(voxels[:, 0]) | _spread(voxels[:, 1]) << np.uint64(1) | _spread(voxels[:, 2]) << np.uint64(2)
    along = np.argsort(code, kind="stable")
    code = code[along]
    changed = code ^ np.concatenate((~code[:1], code[:-1]))
    coarseness = np.zeros(len(code), np.int8)
    for level in range(_BITS):
        coarseness += changed >> np.uint64(3 * level) > 0
    # Points of one level are shuffled (by a fixed hash of their place) so that a cut inside a level is even too.
    shuffle = code * np.uint64(0x9E3779B97F4A7C15)
    shuffle ^= shuffle >> np.uint64(29)
    shuffle *= np.uint64(0xBF58476D1CE4E5B9)
    return along[np.lexsort((shuffle, -coarseness))]


def _spread(v: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Bits of a 21-bit number moved three apart."""
    for shift, mask in (
        (32, 0x1F00000000FFFF),
        (16, 0x1F0000FF0000FF),
        (8, 0x100F00F00F00F00F),
        (4, 0x10C30C30C30C30C3),
        (2, 0x1249249249249249),
    ):
        v = (v | v << np.uint64(shift)) & np.uint64(mask)
    return v
