"""Whether a cloud and a photo of one place lie on top of each other: the shift between them, from their pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window

WINDOW_PX = 128
MIN_COVERED = 0.5
MIN_RESPONSE = 0.05
"""Windows whose correlation peak is weaker say nothing: water, lawns, roofs without texture."""

MAX_WINDOWS = 200


@dataclass(frozen=True)
class Registration:
    """How far the cloud lies from the photo: add the shift to the cloud to bring it onto the photo."""

    east_m: float
    north_m: float
    pixel_m: float
    """Size of the pixels that were compared, the coarser of both."""
    windows: int
    """Windows that agreed on it."""

    @property
    def pixels(self) -> float:
        """Length of the shift in compared pixels."""
        return math.hypot(self.east_m, self.north_m) / self.pixel_m


def measure_shift(photo: Path, cloud: Path, photo_crs: rasterio.CRS, cloud_gsd: float) -> Registration | None:
    """Phase correlation of grey windows where both have colour; the median over windows, None where none can tell.

    `photo` is any raster of the scene's CRS or unit (`photo_crs` where it does not say), `cloud` the raster made from
    the points, north-up in the scene's CRS.
    """
    with rasterio.open(cloud) as below, rasterio.open(photo) as above:
        warp = {"crs": below.crs, "transform": below.transform, "width": below.width, "height": below.height}
        # The photo brought to the cloud's pixels: averaged, so that its finer detail does not alias.
        options = {"src_crs": above.crs or photo_crs, "resampling": Resampling.average, "add_alpha": above.count == 3}
        with WarpedVRT(above, **options, **warp) as warped:
            shifts = [s for window in _windows(below) if (s := _shift(below, warped, window)) is not None]
    if not shifts:
        return None
    dx, dy = np.median(np.array(shifts), axis=0)
    return Registration(float(dx) * cloud_gsd, -float(dy) * cloud_gsd, cloud_gsd, len(shifts))


def _windows(dataset: rasterio.DatasetReader) -> list[Window]:
    """Windows evenly over the raster, at most MAX_WINDOWS."""
    size = min(WINDOW_PX, dataset.width, dataset.height)
    rows = range(0, dataset.height - size + 1, max(1, size // 2))
    columns = range(0, dataset.width - size + 1, max(1, size // 2))
    windows = [Window(c, r, size, size) for r in rows for c in columns]
    return windows[:: max(1, math.ceil(len(windows) / MAX_WINDOWS))]


def _shift(below: rasterio.DatasetReader, above: WarpedVRT, window: Window) -> tuple[float, float] | None:
    mask = below.dataset_mask(window=window) > 0
    if mask.mean() < MIN_COVERED:
        return None
    mask &= above.dataset_mask(window=window) > 0
    if mask.mean() < MIN_COVERED:
        return None
    a = _grey(below.read([1, 2, 3], window=window), mask)
    b = _grey(above.read([1, 2, 3] if above.count >= 3 else [1, 1, 1], window=window), mask)
    hanning = cv2.createHanningWindow(a.shape[::-1], cv2.CV_32F)
    (dx, dy), response = cv2.phaseCorrelate(a, b, hanning)
    return (dx, dy) if response >= MIN_RESPONSE and max(abs(dx), abs(dy)) < a.shape[0] / 4 else None


def _grey(rgb: NDArray[np.uint8], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Grey values around their mean, 0 where not known, so that holes have no edges."""
    grey = rgb.astype(np.float32).mean(axis=0)
    grey -= grey[mask].mean()
    grey[~mask] = 0.0
    return grey
