"""Sorts a stream of points into square buckets on disk, so that each can then be worked on by itself.

Memory holds one chunk of points, whatever the size of the cloud.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import Conversion
from wayfix.scene.journal import Journal
from wayfix.scene.points import POINT, TILE_SIZE
from wayfix.scene.readers.cloud import CloudSource

CHUNK_POINTS = 1_000_000
POINTS_PER_BUCKET = 2_000_000
BUCKET_SIZES_M = (200.0, 100.0, 40.0, 20.0)
NOISE_CLASSES = (7, 18)
NO_COLOR = 160
"""Grey of points that have no colour."""


@dataclass(frozen=True)
class PlacedCloud:
    """A cloud and the operation that brings its metric coordinates into the scene's CRS; None where they are there."""

    source: CloudSource
    to_scene: Conversion | None


@dataclass(frozen=True)
class BucketPoints:
    """The points of one bucket: world metres (N, 3), RGB (N, 3), ASPRS classes (N,), without exact duplicates."""

    xyz: NDArray[np.float64]
    rgb: NDArray[np.uint8]
    classes: NDArray[np.uint8]
    duplicates: int


def bucket_size(clouds: Sequence[PlacedCloud]) -> float:
    """Side in metres of buckets that hold about POINTS_PER_BUCKET, judged from the clouds' headers."""
    density = max(c.source.count / max(c.source.bounds.area, 1.0) for c in clouds)
    return next((side for side in BUCKET_SIZES_M if density * side**2 <= POINTS_PER_BUCKET), BUCKET_SIZES_M[-1])


class Buckets:
    """Bucket files in a folder; bucket (ix, iy) spans [ix, ix + 1) x [iy, iy + 1) times `size` on the scene's grid."""

    def __init__(self, folder: Path, size: float, extent: WorldBox, journal: Journal) -> None:
        self.folder = folder
        self.size = size
        self.extent = extent
        self._journal = journal
        folder.mkdir(exist_ok=True)

    def fill(self, clouds: Sequence[PlacedCloud], quiet: bool) -> None:
        """Sort all points that lie in the extent into the buckets; goes on where an interrupted run stopped."""
        state = self._journal.get("scatter", {"cloud": 0, "points": 0, "sizes": {}, "kept": [0] * len(clouds)})
        if state["cloud"] >= len(clouds):
            return
        self._cut_back(state["sizes"])
        total = sum(c.source.count for c in clouds)
        done = sum(c.source.count for c in clouds[: state["cloud"]]) + state["points"]
        with tqdm(total=total, initial=done, desc="points", unit="pt", unit_scale=True, leave=False,
                  disable=True if quiet else None) as bar:  # fmt: skip
            for number in range(state["cloud"], len(clouds)):
                cloud = clouds[number]
                state["cloud"] = number
                for chunk in cloud.source.chunks(start=state["points"], size=CHUNK_POINTS):
                    xyz = _in_scene(chunk.xyz, cloud.to_scene)
                    state["kept"][number] += self._scatter(xyz, chunk.rgb, chunk.classes, state["sizes"])
                    state["points"] += len(xyz)
                    self._journal.put("scatter", state)
                    bar.update(len(xyz))
                state["cloud"], state["points"] = number + 1, 0
                self._journal.put("scatter", state)

    @property
    def kept(self) -> list[int]:
        """Points of each cloud that lie in the extent."""
        return list(self._journal.get("scatter")["kept"])

    def names(self) -> list[tuple[int, int]]:
        """All buckets with points, south to north and west to east."""
        names = [tuple(int(v) for v in key.split("_")) for key in self._journal.get("scatter")["sizes"]]
        return sorted(((ix, iy) for ix, iy in names), key=lambda name: (name[1], name[0]))

    def density(self) -> float:
        """Points per square metre where most of the points are: the median over points of their tile's density."""
        counts: list[NDArray[np.int64]] = []
        for ix, iy in self.names():
            records = np.fromfile(self._path(ix, iy), POINT)
            cells = np.floor(records["xyz"][:, :2] / np.float32(TILE_SIZE)).astype(np.int64)
            side = math.ceil(self.size / TILE_SIZE) + 1
            counts.append(np.bincount(cells[:, 1] * side + cells[:, 0]))
        per_tile = np.sort(np.concatenate(counts))
        running = np.cumsum(per_tile)
        return float(per_tile[np.searchsorted(running, running[-1] / 2)]) / TILE_SIZE**2

    def read(self, ix: int, iy: int) -> BucketPoints:
        """A bucket's points in the order they came."""
        records = np.fromfile(self._path(ix, iy), POINT)
        _, first = np.unique(records.view(f"V{POINT.itemsize}"), return_index=True)
        kept = records[np.sort(first)]
        xyz = kept["xyz"].astype(np.float64)
        xyz[:, :2] += (ix * self.size, iy * self.size)
        return BucketPoints(xyz, kept["rgb"], kept["cls"], len(records) - len(kept))

    def _scatter(
        self,
        xyz: NDArray[np.float64],
        rgb: NDArray[np.uint8] | None,
        classes: NDArray[np.uint8],
        sizes: dict[str, int],
    ) -> int:
        e = self.extent
        inside = (xyz[:, 0] >= e.min_x) & (xyz[:, 0] < e.max_x) & (xyz[:, 1] >= e.min_y) & (xyz[:, 1] < e.max_y)
        inside &= ~np.isin(classes, NOISE_CLASSES)
        if not inside.all():
            xyz, classes, rgb = xyz[inside], classes[inside], None if rgb is None else rgb[inside]
        if len(xyz) == 0:
            return 0
        cells = np.floor(xyz[:, :2] / self.size).astype(np.int64)
        records = np.empty(len(xyz), POINT)
        records["xyz"][:, :2] = xyz[:, :2] - cells * self.size
        records["xyz"][:, 2] = xyz[:, 2]
        # Rounding to float32 may carry a point onto the far edge, which is the next bucket's.
        np.minimum(records["xyz"][:, :2], np.nextafter(np.float32(self.size), np.float32(0)), out=records["xyz"][:, :2])
        records["rgb"] = NO_COLOR if rgb is None else rgb
        records["cls"] = classes
        low = cells.min(axis=0)
        width = int(cells[:, 0].max() - low[0]) + 1
        keys = (cells[:, 1] - low[1]) * width + (cells[:, 0] - low[0])
        order = np.argsort(keys, kind="stable")
        keys, records = keys[order], records[order]
        starts = np.concatenate(([0], np.flatnonzero(np.diff(keys)) + 1, [len(keys)]))
        for begin, end in pairwise(starts.tolist()):
            ix, iy = int(keys[begin] % width + low[0]), int(keys[begin] // width + low[1])
            with self._path(ix, iy).open("ab") as stream:
                stream.write(records[begin:end].tobytes())
                sizes[f"{ix}_{iy}"] = stream.tell()
        return len(records)

    def _cut_back(self, sizes: dict[str, int]) -> None:
        """Drop what an interrupted run wrote after its last recorded chunk."""
        for path in self.folder.glob("*.points"):
            if path.stem in sizes:
                with path.open("r+b") as stream:
                    stream.truncate(sizes[path.stem])
            else:
                path.unlink()

    def _path(self, ix: int, iy: int) -> Path:
        return self.folder / f"{ix}_{iy}.points"


def _in_scene(xyz: NDArray[np.float64], to_scene: Conversion | None) -> NDArray[np.float64]:
    if to_scene is None:
        return xyz
    x, y = to_scene(xyz[:, 0], xyz[:, 1])
    return np.column_stack((x, y, xyz[:, 2]))
