"""The terrain under a city, and the height models a survey of it would yield."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

HEIGHT_GSD_M = 0.5
"""Cell size of DSM and DTM, metres."""


def make_terrain(rng: np.random.Generator, size: float, gsd: float) -> NDArray[np.float32]:
    """(H, W) float32 heights of bare ground in metres, row 0 = north: about 20 m, sloping by a few metres."""
    count = round(size / gsd)
    x = (np.arange(count) + 0.5) * gsd
    y = size - x
    slope = rng.uniform(-0.008, 0.008, 2)
    waves = rng.uniform(-0.6, 0.6, 2)
    phase = rng.uniform(0, 2 * np.pi, 2)
    along_x = slope[0] * x + waves[0] * np.sin(x / 60.0 + phase[0])
    along_y = slope[1] * y + waves[1] * np.sin(y / 75.0 + phase[1])
    level = 20.0 + rng.uniform(-3, 3)
    return (level + along_x[None, :] + along_y[:, None]).astype(np.float32)


def survey_surface(rng: np.random.Generator, z: NDArray[np.float32], size: float) -> NDArray[np.float32]:
    """A DSM as photogrammetry yields it from full-resolution heights: cell means, smoothed, with noise of some cm."""
    dsm = cell_means(z, size)
    dsm = cv2.GaussianBlur(dsm, (0, 0), 1.0)
    noise = rng.standard_normal(dsm.shape, dtype=np.float32) * np.float32(rng.uniform(0.05, 0.08))
    return (dsm + noise).astype(np.float32)


def cell_means(z: NDArray[np.float32], size: float) -> NDArray[np.float32]:
    """Mean of full-resolution heights over each cell of HEIGHT_GSD_M, (h, w) float32 metres."""
    count = round(size / HEIGHT_GSD_M)
    return cv2.resize(z, (count, count), interpolation=cv2.INTER_AREA).astype(np.float32)
