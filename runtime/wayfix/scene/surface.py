"""Rasters from points: top surface and its colour, lowest points, ground, holes filled."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wayfix.errors import InvalidPoints

GROUND_CLASS = 2
SMALL_HOLE_PX = 3
"""Holes of a surface or photo up to about twice this wide are filled from their rim; larger ones stay unknown."""

GROUND_REACH_M = 60.0
"""Ground is interpolated under buildings and trees up to this far from known ground."""

CLOTH_CELL_M = 1.0
GROUND_ROUGHNESS_M = 0.3
"""Cells this little above the lowest of a square metre of ground are ground too."""

_FEWEST_CELLS = 16


@njit(cache=True, nogil=True)
def splat_top(
    columns: NDArray[np.int64],
    rows: NDArray[np.int64],
    z: NDArray[np.float64],
    rgb: NDArray[np.uint8],
    top: NDArray[np.float32],
    color: NDArray[np.uint8],
) -> None:
    """Keep the highest point of each cell: `top` (h, w) metres, NaN where none, and its `color` (h, w, 3), in place.

    Of equally high points the first one stays.
    """
    for i in range(len(z)):
        r, c = rows[i], columns[i]
        if 0 <= r < top.shape[0] and 0 <= c < top.shape[1]:
            here = top[r, c]
            value = np.float32(z[i])
            if np.isnan(here) or value > here:
                top[r, c] = value
                for k in range(3):
                    color[r, c, k] = rgb[i, k]


@njit(cache=True, nogil=True)
def splat_low(
    columns: NDArray[np.int64], rows: NDArray[np.int64], z: NDArray[np.float64], low: NDArray[np.float32]
) -> None:
    """Keep the lowest height of each cell in `low` (h, w), metres, NaN where none, in place."""
    for i in range(len(z)):
        r, c = rows[i], columns[i]
        if 0 <= r < low.shape[0] and 0 <= c < low.shape[1]:
            value = np.float32(z[i])
            if np.isnan(low[r, c]) or value < low[r, c]:
                low[r, c] = value


@njit(cache=True, nogil=True)
def fill_small_holes(
    heights: NDArray[np.float32], color: NDArray[np.uint8], passes: int
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Close small holes: in each pass an unknown cell takes the mean of its known neighbours if it has at least 3.

    `heights` (h, w) is NaN where unknown, `color` (h, w, 3) goes with it. A result depends on cells at most `passes`
    away, so blocks with such a rim give what the whole would.
    """
    h, w = heights.shape
    for _ in range(passes):
        new_heights, new_color = heights.copy(), color.copy()
        for r in range(h):
            for c in range(w):
                if not np.isnan(heights[r, c]):
                    continue
                count, total = 0, 0.0
                red, green, blue = 0.0, 0.0, 0.0
                for rr in range(max(r - 1, 0), min(r + 2, h)):
                    for cc in range(max(c - 1, 0), min(c + 2, w)):
                        if not np.isnan(heights[rr, cc]):
                            count += 1
                            total += heights[rr, cc]
                            red += color[rr, cc, 0]
                            green += color[rr, cc, 1]
                            blue += color[rr, cc, 2]
                if count >= 3:
                    new_heights[r, c] = np.float32(total / count)
                    new_color[r, c, 0] = np.uint8(red / count + 0.5)
                    new_color[r, c, 1] = np.uint8(green / count + 0.5)
                    new_color[r, c, 2] = np.uint8(blue / count + 0.5)
        heights, color = new_heights, new_color
    return heights, color


def cloth_ground(low: NDArray[np.float32], cell_m: float) -> NDArray[np.float32]:
    """The cells of a lowest-point raster (h, w) that are ground, the others NaN, by the cloth simulation filter.

    Zhang et al. 2016, as the package CSF implements it. Raises InvalidPoints where that package is missing.
    """
    try:
        from CSF_3DFin import CSF
    except ImportError as error:
        raise InvalidPoints(
            "the cloud has no ground class, and the ground filter is not installed on this machine; classify the "
            "ground first, or import on one where `pip install csf-3dfin` works"
        ) from error
    factor = max(1, round(CLOTH_CELL_M / cell_m))
    coarse = _lowest(low, factor)
    rows, columns = np.nonzero(np.isfinite(coarse))
    floor = np.full(coarse.shape, -np.inf, np.float32)
    if len(rows) >= _FEWEST_CELLS:
        cloth = CSF()
        cloth.params.verbose = False
        cloth.params.cloth_resolution = CLOTH_CELL_M
        cloth.params.rigidness = 2
        step = cell_m * factor
        cloth.set_point_cloud(np.column_stack((columns * step, rows * step, coarse[rows, columns])).astype(np.float64))
        chosen, _ = cloth.classify_ground()
        floor[rows[chosen], columns[chosen]] = coarse[rows[chosen], columns[chosen]]
    fine = np.repeat(np.repeat(floor, factor, axis=0), factor, axis=1)[: low.shape[0], : low.shape[1]]
    return np.where(low <= fine + GROUND_ROUGHNESS_M, low, np.float32(np.nan))


def _lowest(low: NDArray[np.float32], factor: int) -> NDArray[np.float32]:
    """The lowest of every factor x factor cells, NaN where none is known."""
    h, w = low.shape
    padded = np.full((-(-h // factor) * factor, -(-w // factor) * factor), np.inf, np.float32)
    padded[:h, :w] = np.where(np.isfinite(low), low, np.float32(np.inf))
    best = padded.reshape(padded.shape[0] // factor, factor, padded.shape[1] // factor, factor).min(axis=(1, 3))
    return np.where(np.isfinite(best), best, np.float32(np.nan))


def fill_ground(ground: NDArray[np.float32], cell_m: float) -> NDArray[np.float32]:
    """Ground heights (h, w) with gaps up to GROUND_REACH_M interpolated by GDAL's inverse distance filling."""
    from rasterio.fill import fillnodata

    known = np.isfinite(ground)
    if not known.any():
        return ground
    source = np.where(known, ground, np.float32(0))
    reach = math.ceil(GROUND_REACH_M / cell_m)
    return fillnodata(
        source, mask=known.astype(np.uint8), max_search_distance=reach, smoothing_iterations=0
    ) * _reached(known, reach)


def _reached(known: NDArray[np.bool_], reach: int) -> NDArray[np.float32]:
    """1 within `reach` cells of a known one, NaN beyond: what GDAL leaves untouched there is no height."""
    import cv2

    distance = cv2.distanceTransform((~known).astype(np.uint8), cv2.DIST_L2, 5)
    return np.where(distance <= reach, np.float32(1), np.float32(np.nan))


def hillshade(heights: NDArray[np.float32], cell_m: float) -> NDArray[np.uint8]:
    """Grey shading (h, w) of a surface lit from the north-west, for clouds without colours."""
    known = np.nan_to_num(heights, nan=float(np.nanmean(heights)) if np.isfinite(heights).any() else 0.0)
    south, east = np.gradient(known, cell_m)
    light = (1.0 - 0.7 * east + 0.7 * south) / np.sqrt(1.0 + east**2 + south**2)
    return np.clip(90 + 90 * light, 0, 255).astype(np.uint8)
