"""The page's pictures: the photo, and the heights coloured and shaded."""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from wayfix.geo.boxes import WorldBox
from wayfix.scene.tiff import BevPyramid, HeightGrid

JPEG_QUALITY, WEBP_QUALITY = 82, 85

HEIGHT_LONG_SIDE_PX = 1500
PROBE_LONG_SIDE = 400
"""Cells of the grid that tells the height at the cursor."""

RAMP = ("#30123b", "#4662d7", "#36aaf9", "#1ae4b6", "#72fe5e", "#c8ef34", "#faba39", "#f66b19", "#ca2a04", "#7a0403")
"""Low to high (turbo): neighbouring heights stay apart, also under the shading."""

_STRIP_CELLS = 8_000_000
_SUN_AZIMUTH_DEG, _SUN_ALTITUDE_DEG = 315.0, 45.0


def photo_uri(bev: BevPyramid, long_side_px: int) -> str:
    """The whole photo as a JPEG data URI, at most `long_side_px` pixels wide or high, never enlarged."""
    index = bev.level_for(max(bev.extent.width, bev.extent.height) / long_side_px)
    level = bev.levels[index]
    pixels = bev.read(index, 0, 0, level.width, level.height)
    shrink = min(1.0, long_side_px / max(level.width, level.height))
    if shrink < 1.0:
        size = max(1, round(level.width * shrink)), max(1, round(level.height * shrink))
        pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    return _data_uri(".jpg", "image/jpeg", bgr, cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY)


def height_layer(grid: HeightGrid, box: WorldBox) -> dict[str, Any] | None:
    """What the page knows of a height layer: picture, legend and the grid for the cursor; None without any height.

    `bounds` are in metres from the south-west corner of `box`, `low` and `high` the legend's ends in the scene's datum.
    """
    heights = _sampled(grid, HEIGHT_LONG_SIDE_PX)
    known = heights[np.isfinite(heights)]
    if known.size == 0:
        return None
    # One bird or one pit must not take all the colours.
    low, high = (float(v) for v in np.percentile(known, (1.0, 99.0)))
    high = max(high, low + 0.1)
    extent = grid.extent
    colored = _colored(heights, low, high, extent.width / heights.shape[1])
    return {
        "image": _data_uri(".webp", "image/webp", colored, cv2.IMWRITE_WEBP_QUALITY, WEBP_QUALITY),
        "bounds": [
            extent.min_x - box.min_x,
            extent.min_y - box.min_y,
            extent.max_x - box.min_x,
            extent.max_y - box.min_y,
        ],
        "low": round(low, 2),
        "high": round(high, 2),
        "ramp": list(RAMP),
        "probe": _probe(_sampled(grid, PROBE_LONG_SIDE)),
    }


def _sampled(grid: HeightGrid, long_side: int) -> NDArray[np.float32]:
    """The whole grid at no more than `long_side` cells a side, read in strips so that a city fits in memory."""
    level = grid.levels[0]
    shrink = long_side / max(level.width, level.height)
    if shrink >= 1.0:
        return grid.window(grid.extent)
    columns, rows = max(1, round(level.width * shrink)), max(1, round(level.height * shrink))
    strips = [grid.resampled(strip, columns, count) for strip, count in _strips(grid, rows)]
    return np.concatenate(strips)


def _strips(grid: HeightGrid, rows: int) -> Iterator[tuple[WorldBox, int]]:
    """The grid's extent from north to south, and the share of `rows` in each part."""
    level, extent = grid.levels[0], grid.extent
    parts = math.ceil(level.width * level.height / _STRIP_CELLS)
    edges = np.linspace(0, rows, min(parts, rows) + 1).round().astype(int).tolist()
    row_m = extent.height / rows
    for first, last in itertools.pairwise(edges):
        top, bottom = extent.max_y - first * row_m, extent.max_y - last * row_m
        yield WorldBox(extent.min_x, bottom, extent.max_x, top), last - first


def _colored(heights: NDArray[np.float32], low: float, high: float, cell_m: float) -> NDArray[np.uint8]:
    """BGRA of heights in metres, shaded by the sun in the north-west; alpha 0 where no height is known."""
    known = np.isfinite(heights)
    share = np.clip((np.where(known, heights, low) - low) / (high - low), 0.0, 1.0)
    table = np.array([[int(code[i : i + 2], 16) for i in (5, 3, 1)] for code in RAMP], np.float32)
    at = np.linspace(0.0, 1.0, len(RAMP))
    ramp = np.stack([np.interp(np.linspace(0, 1, 256), at, table[:, channel]) for channel in range(3)], axis=1)
    colors = ramp[(share * 255).astype(np.uint8)] * _shade(heights, cell_m)[..., None]
    alpha = np.where(known, 255, 0)
    return np.dstack([np.clip(colors, 0, 255), alpha]).astype(np.uint8)


def _shade(heights: NDArray[np.float32], cell_m: float) -> NDArray[np.float32]:
    """Brightness 0.35..1.15 of a surface, 1 where it is flat or its slope not known."""
    if min(heights.shape) < 2:
        return np.ones(heights.shape, np.float32)
    south, east = (np.nan_to_num(part) for part in np.gradient(heights, cell_m))
    azimuth, altitude = math.radians(_SUN_AZIMUTH_DEG), math.radians(_SUN_ALTITUDE_DEG)
    # The surface's normal is (-east, south, 1) in east, north, up: rows run south.
    toward = -east * math.sin(azimuth) + south * math.cos(azimuth)
    lit = (toward * math.cos(altitude) + math.sin(altitude)) / np.sqrt(1.0 + east**2 + south**2)
    return np.clip(0.35 + 0.65 * lit / math.sin(altitude), 0.35, 1.15).astype(np.float32)


def _probe(heights: NDArray[np.float32]) -> dict[str, Any]:
    """Heights as base64 of little-endian 16-bit numbers from 1 up, `step` metres each above `low`; 0 is unknown."""
    known = np.isfinite(heights)
    if not known.any():
        return {"columns": 0, "rows": 0, "low": 0.0, "step": 0.0, "cells": ""}
    low, high = float(heights[known].min()), float(heights[known].max())
    step = max((high - low) / 65_534, 0.01)
    cells = np.where(known, np.round((np.where(known, heights, low) - low) / step) + 1, 0).astype("<u2")
    return {
        "columns": cells.shape[1],
        "rows": cells.shape[0],
        "low": low,
        "step": step,
        "cells": base64.b64encode(cells.tobytes()).decode(),
    }


def _data_uri(suffix: str, mime: str, image: NDArray[np.uint8], option: int, quality: int) -> str:
    encoded = cv2.imencode(suffix, image, [option, quality])[1]
    return f"data:{mime};base64,{base64.b64encode(encoded.tobytes()).decode()}"
