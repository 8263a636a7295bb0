"""Where the nodes of ways are, for the ways near a scene."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import shapely
from numpy.typing import NDArray

from wayfix.geo.boxes import WorldBox
from wayfix.geo.crs import Conversion
from wayfix.scene.readers.osm_file import OsmFile

_MARGIN_DEG = 1e-4
"""The edges of a scene are curved in degrees; a point between two of the sampled ones lies within this."""


class Window:
    """The scene's extent in its CRS, and a box in degrees around it."""

    def __init__(self, extent: WorldBox, to_scene: Conversion) -> None:
        self._to_scene = to_scene
        self.extent = shapely.box(extent.min_x, extent.min_y, extent.max_x, extent.max_y)
        edge = shapely.get_coordinates(shapely.segmentize(self.extent, max(extent.width, extent.height) / 64))
        lon, lat = to_scene.inverse(edge[:, 0], edge[:, 1])
        self.lonlat = (
            lon.min() - _MARGIN_DEG,
            lat.min() - _MARGIN_DEG,
            lon.max() + _MARGIN_DEG,
            lat.max() + _MARGIN_DEG,
        )

    def holds(self, lon: float, lat: float) -> bool:
        """Whether a point in degrees is in the scene or just outside."""
        west, south, east, north = self.lonlat
        return west <= lon <= east and south <= lat <= north

    def meets(self, bounds: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which boxes (n, 4: west, south, east, north in degrees, or NaN) may share a point with the scene."""
        west, south, east, north = self.lonlat
        # A comparison with NaN is false: what has no known place is nowhere.
        return (bounds[:, 0] <= east) & (bounds[:, 2] >= west) & (bounds[:, 1] <= north) & (bounds[:, 3] >= south)

    def to_scene(self, lonlat: NDArray[np.float64]) -> NDArray[np.float64]:
        """Degrees (n, 2) to metres in the scene's CRS; NaN for what is unknown or too far away for the CRS."""
        x, y = self._to_scene.transformer.transform(lonlat[:, 0], lonlat[:, 1])
        placed = np.column_stack((x, y))
        placed[~np.isfinite(placed).all(axis=1)] = np.nan
        return placed


@dataclass(frozen=True)
class WayTable:
    """The ways near the scene: their nodes, and where these are."""

    rows: dict[int, tuple[int, int]]
    """Way id -> begin and end in `index`."""
    index: NDArray[np.int64]
    """Rows of `ids` and `xy`, one for each vertex of each way."""
    ids: NDArray[np.int64]
    """Node ids, sorted."""
    xy: NDArray[np.float64]
    """Metres in the scene's CRS, NaN where the file does not hold a node."""
    outside: frozenset[int]
    """Ways of the file that do not come near the scene."""

    def __contains__(self, way: object) -> bool:
        return way in self.rows

    def nodes(self, way: int) -> NDArray[np.int64]:
        """Node ids in order."""
        begin, end = self.rows[way]
        return self.ids[self.index[begin:end]]

    def points(self, way: int) -> NDArray[np.float64]:
        """Vertices (n, 2) in order."""
        begin, end = self.rows[way]
        return self.xy[self.index[begin:end]]


def read_ways(file: OsmFile, keys: Sequence[str], groups: Iterable[Collection[int]], window: Window) -> WayTable:
    """The ways with one of the keys that come near the scene; ways of one of `groups` are kept where any of it does."""
    groups = list(groups)
    ways, refs, ends = array("q"), array("q"), array("q", [0])
    seen: set[int] = set()
    for way, nodes in file.way_nodes({way for group in groups for way in group}, *keys):
        if way not in seen and nodes:
            seen.add(way)
            ways.append(way)
            refs.extend(nodes)
            ends.append(len(refs))
    ids, index = np.unique(np.frombuffer(refs, np.int64), return_inverse=True)
    lonlat = file.locations(ids)
    stops = np.frombuffer(ends, np.int64)
    kept = window.meets(_bounds(lonlat[index], stops[:-1]))
    row_of = {way: row for row, way in enumerate(ways)}
    for group in groups:
        rows = [row_of[way] for way in group if way in row_of]
        if kept[rows].any():
            kept[rows] = True
    rows = np.flatnonzero(kept).tolist()
    # Only the nodes of what is kept are converted: a CRS need not be able to place the rest of an extract.
    used = np.zeros(len(ids), bool)
    for row in rows:
        used[index[stops[row] : stops[row + 1]]] = True
    xy = np.full((len(ids), 2), np.nan)
    xy[used] = window.to_scene(lonlat[used])
    return WayTable(
        rows={ways[row]: (int(stops[row]), int(stops[row + 1])) for row in rows},
        index=index,
        ids=ids,
        xy=xy,
        outside=frozenset(ways[row] for row in np.flatnonzero(~kept).tolist()),
    )


def _bounds(lonlat: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """West, south, east, north of consecutive runs of points; unknown points do not count."""
    if not len(starts):
        return np.empty((0, 4))
    return np.column_stack((np.fmin.reduceat(lonlat, starts), np.fmax.reduceat(lonlat, starts)))
