"""A scene opened for reading: what the views and tools look at."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np

from wayfix.errors import SceneCorrupt
from wayfix.geo.boxes import WorldBox, iou_bev
from wayfix.geo.crs import parse_crs
from wayfix.geo.frame import SceneFrame
from wayfix.scene.landmark import Landmark
from wayfix.scene.landmark_index import LandmarkIndex
from wayfix.scene.manifest import Manifest, read_manifest, sha256_of
from wayfix.scene.network import Network, Place
from wayfix.scene.points import PointStore
from wayfix.scene.tiff import BevPyramid, HeightGrid
from wayfix.scene.vectors import read_landmarks, read_network, read_places


class Scene:
    """Opening checks the manifest; a layer is opened at its first use, and its tiles are checked as they are read."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        origin = self.manifest.origin
        self.frame = SceneFrame(parse_crs(self.manifest.crs), origin.x, origin.y, origin.z)
        self.extent: WorldBox = self.manifest.extent.box()

    @property
    def id(self) -> str:
        """The scene's name in requests and results."""
        return self.manifest.id

    @cached_property
    def bev(self) -> BevPyramid:
        """The bird's-eye photo."""
        return BevPyramid(self._file("bev"), self._crcs("bev"))

    @cached_property
    def dsm(self) -> HeightGrid | None:
        """Surface heights, or None where the scene has none."""
        return self._heights("dsm")

    @cached_property
    def dtm(self) -> HeightGrid | None:
        """Ground heights, or None where the scene has none."""
        return self._heights("dtm")

    @cached_property
    def points(self) -> PointStore | None:
        """The coloured point tiles, or None where the scene has none: then there are no oblique views."""
        return PointStore.open(self.folder / "points") if "points" in self.manifest.layers else None

    @cached_property
    def landmarks(self) -> tuple[Landmark, ...]:
        """All landmarks; empty where the scene has none."""
        if "landmarks" not in self.manifest.layers:
            return ()
        self._check_file("landmarks", 0)
        return tuple(read_landmarks(self._file("landmarks")))

    @cached_property
    def network(self) -> Network | None:
        """Footways and their nodes, or None where the scene has no map."""
        if "network" not in self.manifest.layers:
            return None
        self._check_file("network", 0)
        return read_network(self._file("network"))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Shops, offices and the like that a route may lead to; empty where the scene has no map."""
        if "network" not in self.manifest.layers:
            return ()
        self._check_file("network", 0)
        return tuple(read_places(self._file("network")))

    @cached_property
    def landmark_index(self) -> LandmarkIndex:
        """The search over the landmarks' names."""
        return LandmarkIndex(self.landmarks)

    def heights_in(self, box: WorldBox) -> tuple[float | None, float | None]:
        """Ground and top height in a box's footprint, metres in the scene's datum, None where not known.

        Ground is the lowest DTM cell, top the 95th percentile of the DSM: the highest cells of a tight box often belong
        to what stands beside it (docs/paper-choices.md).
        """
        return _statistic(self.dtm, box, 0.0), _statistic(self.dsm, box, 95.0)

    def name_at(self, box: WorldBox) -> str | None:
        """The name of the landmark whose bounds are this box, near enough (IoU at least 0.5), or None."""
        best = max(((iou_bev(box, _bounds(mark)), mark.name) for mark in self.landmarks), default=(0.0, ""))
        return best[1] if best[0] >= 0.5 else None

    def problems(self) -> list[str]:
        """Check every file of the scene against the manifest; an empty list means all is well."""
        found = []
        for name, layer in self.manifest.layers.items():
            for entry in layer.files:
                path = self.folder / entry.path
                if not path.is_file():
                    found.append(f"{entry.path} is missing")
                elif path.stat().st_size != entry.bytes:
                    found.append(f"{entry.path} has {path.stat().st_size} bytes, {entry.bytes} were written")
                elif sha256_of(path) != entry.sha256:
                    found.append(f"{entry.path} does not match its checksum")
                    found += self._damaged_tiles(name)
        return found

    def close(self) -> None:
        """Close the files that were opened."""
        for layer in ("bev", "dsm", "dtm"):
            opened = self.__dict__.pop(layer, None)
            if opened is not None:
                opened.close()

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _damaged_tiles(self, layer: str) -> list[str]:
        try:
            if layer in ("bev", "dsm", "dtm"):
                return getattr(self, layer).problems()
            if layer == "points" and self.points is not None:
                return list(self.points.check())
        except SceneCorrupt as error:
            return [str(error)]
        return []

    def _heights(self, name: str) -> HeightGrid | None:
        return HeightGrid(self._file(name), self._crcs(name)) if name in self.manifest.layers else None

    def _file(self, layer: str, index: int = 0) -> Path:
        return self.folder / self.manifest.layers[layer].files[index].path

    def _crcs(self, layer: str) -> np.ndarray:
        self._check_file(layer, 1)
        return np.frombuffer(self._file(layer, 1).read_bytes(), "<u4")

    def _check_file(self, layer: str, index: int) -> None:
        """Compare a small file with its checksum; the large ones are checked tile by tile."""
        path, entry = self._file(layer, index), self.manifest.layers[layer].files[index]
        try:
            matches = sha256_of(path) == entry.sha256
        except FileNotFoundError:
            matches = False
        if not matches:
            raise SceneCorrupt(f"{path} is missing or does not match its checksum; import the scene again")


def _bounds(mark: Landmark) -> WorldBox:
    x0, y0, x1, y1 = mark.geometry.bounds
    return WorldBox(x0, y0, x1, y1)


def _statistic(grid: HeightGrid | None, box: WorldBox, percentile: float) -> float | None:
    if grid is None:
        return None
    cells = grid.window(box)
    known = cells[np.isfinite(cells)]
    return float(np.percentile(known, percentile)) if known.size else None
