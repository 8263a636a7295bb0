"""The images of one scene, as policies ask for them: the whole, a zoom, an oblique render."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from wayfix.geo.boxes import WorldBox
from wayfix.geo.transforms import ViewTransform
from wayfix.scene.scene import Scene
from wayfix.views.cache import ImageCache
from wayfix.views.oblique import render_oblique

MIN_CROP_M = 4.0
MAX_ASPECT = 4.0
"""A thinner crop is widened: a strip of a few pixels shows nothing (docs/paper-choices.md)."""

MAX_UPSAMPLING = 8.0


@dataclass(frozen=True)
class CacheBudget:
    """Bytes for rendered oblique images."""

    memory_bytes: int = 64 << 20
    disk_bytes: int = 256 << 20


class SceneViews:
    """Cuts and renders images of a scene. Zooms are read from the photo each time; oblique renders are cached."""

    def __init__(self, scene: Scene, budget: CacheBudget | None = None, cache_folder: Path | None = None) -> None:
        budget = budget or CacheBudget()
        self.scene = scene
        folder = cache_folder if cache_folder is not None else scene.folder / "cache" / f"r{scene.manifest.revision}"
        self.oblique_cache = ImageCache(budget.memory_bytes, folder, budget.disk_bytes)
        self._overview = lru_cache(maxsize=4)(self._cut_overview)

    def overview(self, long_side: int) -> tuple[NDArray[np.uint8], ViewTransform]:
        """The whole scene with at most `long_side` pixels, RGB, read-only, and its transform."""
        return self._overview(long_side)

    def zoom(self, box: WorldBox, long_side: int) -> tuple[NDArray[np.uint8], ViewTransform]:
        """A crop of the photo around `box` (inside the scene), RGB, and the transform of what was really cut.

        The cut is grown to MIN_CROP_M and MAX_ASPECT and outwards to whole pixels; its long side has `long_side`
        pixels, less where that would enlarge the photo more than MAX_UPSAMPLING times.
        """
        box = self._usable(box)
        bev = self.scene.bev
        level_index = bev.level_for(max(box.width, box.height) / long_side)
        level = bev.levels[level_index]
        gsd_x, gsd_y = bev.extent.width / level.width, bev.extent.height / level.height
        c0 = max(0, math.floor((box.min_x - bev.extent.min_x) / gsd_x + 1e-6))
        c1 = min(level.width, math.ceil((box.max_x - bev.extent.min_x) / gsd_x - 1e-6))
        r0 = max(0, math.floor((bev.extent.max_y - box.max_y) / gsd_y + 1e-6))
        r1 = min(level.height, math.ceil((bev.extent.max_y - box.min_y) / gsd_y - 1e-6))
        pixels = bev.read(level_index, c0, r0, c1 - c0, r1 - r0)
        extent = WorldBox(
            bev.extent.min_x + c0 * gsd_x,
            bev.extent.max_y - r1 * gsd_y,
            bev.extent.min_x + c1 * gsd_x,
            bev.extent.max_y - r0 * gsd_y,
        )
        # A level is at most about twice too fine: linear is good enough there, and six times faster than area averages.
        image = _resize(pixels, extent, long_side, cv2.INTER_LINEAR)
        return image, ViewTransform.north_up(extent, image.shape[1], image.shape[0])

    def oblique(self, region: WorldBox, direction: str, long_side: int) -> tuple[NDArray[np.uint8], float]:
        """Oblique render of a region, RGB, read-only, and the share of its pixels (0..1) that points cover."""
        manifest = self.scene.manifest
        corners = ",".join(f"{v:.2f}" for v in (region.min_x, region.min_y, region.max_x, region.max_y))
        key = f"{manifest.id}/{manifest.revision}/{manifest.created}/{direction}/{long_side}/{corners}"
        hit = self.oblique_cache.get(key)
        if hit is not None:
            return hit[0], float(hit[1]["coverage"])
        assert self.scene.points is not None, "the oblique tool is offered only for scenes with points"
        rendered = render_oblique(self.scene.points, region, direction, long_side)
        self.oblique_cache.put(key, rendered.image, {"coverage": rendered.coverage})
        return rendered.image, rendered.coverage

    def heights_above_ground(self, transform: ViewTransform) -> NDArray[np.float32] | None:
        """DSM minus DTM in metres at a view's pixels (height, width), NaN where not known; None without both."""
        if self.scene.dsm is None or self.scene.dtm is None:
            return None
        shape = transform.extent, transform.width, transform.height
        return self.scene.dsm.resampled(*shape) - self.scene.dtm.resampled(*shape)

    def _cut_overview(self, long_side: int) -> tuple[NDArray[np.uint8], ViewTransform]:
        bev = self.scene.bev
        level_index = bev.level_for(max(bev.extent.width, bev.extent.height) / long_side)
        level = bev.levels[level_index]
        image = _resize(bev.read(level_index, 0, 0, level.width, level.height), bev.extent, long_side, cv2.INTER_AREA)
        image.flags.writeable = False
        return image, ViewTransform.north_up(bev.extent, image.shape[1], image.shape[0])

    def _usable(self, box: WorldBox) -> WorldBox:
        long = max(box.width, box.height, MIN_CROP_M)
        short = max(MIN_CROP_M, long / MAX_ASPECT)
        width = min(max(box.width, short), self.scene.extent.width)
        height = min(max(box.height, short), self.scene.extent.height)
        x, y = box.center
        bounds = self.scene.extent
        x0 = min(max(x - width / 2, bounds.min_x), bounds.max_x - width)
        y0 = min(max(y - height / 2, bounds.min_y), bounds.max_y - height)
        return WorldBox(x0, y0, x0 + width, y0 + height)


def _resize(pixels: NDArray[np.uint8], extent: WorldBox, long_side: int, shrink: int) -> NDArray[np.uint8]:
    """North-up pixels of an extent at `long_side`, by the interpolation `shrink` where that makes them fewer."""
    long = min(long_side, math.ceil(max(pixels.shape[:2]) * MAX_UPSAMPLING))
    scale = long / max(extent.width, extent.height)
    size = max(1, round(extent.width * scale)), max(1, round(extent.height * scale))
    shrinking = size[0] < pixels.shape[1]
    return cv2.resize(pixels, size, interpolation=shrink if shrinking else cv2.INTER_CUBIC)
