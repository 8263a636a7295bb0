"""Sunlight on a height map: cast shadows, slopes, texture and tint, in two passes over the pixels."""

from __future__ import annotations

import math

import cv2
import numpy as np
from numba import njit
from numpy.typing import NDArray

from wayfix.synth.canvas import Canvas
from wayfix.synth.plan import Palette


def lit_image(canvas: Canvas, palette: Palette, rng: np.random.Generator) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB of the canvas in the palette's light."""
    shadow = cast_shadows(canvas.z, canvas.gsd, palette.sun_azimuth, palette.sun_elevation)
    shape = canvas.z.shape
    fine = rng.standard_normal(shape, dtype=np.float32)
    patches = rng.standard_normal((shape[0] // 12 + 2, shape[1] // 12 + 2), dtype=np.float32)
    patches += 1.6 * cv2.GaussianBlur(patches, (0, 0), 3.0)
    fine += 0.8 * cv2.resize(patches, shape[::-1], interpolation=cv2.INTER_CUBIC)
    cos_e, sin_e = math.cos(palette.sun_elevation), math.sin(palette.sun_elevation)
    sun = (math.sin(palette.sun_azimuth) * cos_e, math.cos(palette.sun_azimuth) * cos_e, sin_e)
    direct = _sunlight(canvas.z, shadow, sun, canvas.gsd)
    rough = fine * canvas.grain * np.float32(0.4)
    out = _colored(canvas.albedo, rough, direct, palette.tint, palette.saturation, palette.ambient, palette.haze)
    # A camera's optics: no edge of a real orthophoto is one pixel sharp.
    return cv2.GaussianBlur(out, (0, 0), 0.6)


def cast_shadows(z: NDArray[np.float32], gsd: float, azimuth: float, elevation: float) -> NDArray[np.float32]:
    """(H, W) float32 shares of direct sun that is blocked, 0..1, for heights in metres and row 0 = north.

    `azimuth` is the bearing towards the sun in radians clockwise from north, `elevation` its height in radians.
    """
    east, north = math.sin(azimuth), math.cos(azimuth)
    shadow = np.empty_like(z)
    if abs(north) >= abs(east):
        drop = gsd / abs(north) * math.tan(elevation)
        _sweep(z, shadow, north > 0, -east / abs(north), drop)
    else:
        drop = gsd / abs(east) * math.tan(elevation)
        turned = np.empty_like(z.T)
        _sweep(np.ascontiguousarray(z.T), turned, east < 0, north / abs(east), drop)
        shadow = np.ascontiguousarray(turned.T)
    return cv2.GaussianBlur(shadow, (0, 0), 0.8)


@njit(cache=True)
def _sweep(z: NDArray[np.float32], shadow: NDArray[np.float32], forward: bool, slant: float, drop: float) -> None:
    """Walk lines away from the sun, row by row, carrying the height below which there is shadow.

    `forward` starts at row 0, which then faces the sun. A line moves `slant` columns a row, and the shadow's top
    falls by `drop` metres. Lines are walked on whole pixels, so that a shadow's edge does not wash out with its length.
    """
    rows, cols = z.shape
    top = np.full(cols, -np.inf, np.float32)
    moved = np.empty(cols, np.float32)
    before = 0
    for step in range(rows):
        row = step if forward else rows - 1 - step
        now = round(step * slant)
        shift = now - before
        before = now
        for col in range(cols):
            source = col - shift
            moved[col] = top[source] - drop if 0 <= source < cols else -np.inf
        for col in range(cols):
            height = z[row, col]
            depth = moved[col] - height
            shadow[row, col] = min(1.0, max(0.0, depth / 0.12))
            top[col] = max(moved[col], height)


@njit(cache=True)
def _sunlight(
    z: NDArray[np.float32], shadow: NDArray[np.float32], sun: tuple[float, float, float], gsd: float
) -> NDArray[np.float32]:
    """Direct light on each pixel, 1 on flat sunlit ground. `sun` is the unit vector (east, north, up) towards it."""
    rows, cols = z.shape
    direct = np.empty((rows, cols), np.float32)
    for r in range(rows):
        up, down = max(r - 1, 0), min(r + 1, rows - 1)
        for c in range(cols):
            left, right = max(c - 1, 0), min(c + 1, cols - 1)
            # The gentler of both one-sided slopes: a wall's foot or edge is not a steep roof.
            here = z[r, c]
            east = _gentler(z[r, right] - here, here - z[r, left]) / gsd
            north = _gentler(z[up, c] - here, here - z[down, c]) / gsd
            facing = (sun[2] - east * sun[0] - north * sun[1]) / math.sqrt(1.0 + east * east + north * north)
            direct[r, c] = min(1.45, max(0.0, facing / sun[2])) * (1.0 - shadow[r, c])
    return direct


@njit(cache=True)
def _colored(
    albedo: NDArray[np.uint8],
    rough: NDArray[np.float32],
    direct: NDArray[np.float32],
    tint: tuple[float, float, float],
    saturation: float,
    ambient: float,
    haze: float,
) -> NDArray[np.uint8]:
    """(H, W, 3) image: albedo, roughened, in ambient and direct light, tinted, behind a little haze."""
    rows, cols = direct.shape
    out = np.empty((rows, cols, 3), np.uint8)
    for r in range(rows):
        for c in range(cols):
            grey = (float(albedo[r, c, 0]) + albedo[r, c, 1] + albedo[r, c, 2]) / 3.0
            for k in range(3):
                # What the sky lights is bluer than what the sun lights.
                sky = ambient * (0.93 + 0.07 * k)
                paint = grey + saturation * (albedo[r, c, k] - grey)
                value = (paint + rough[r, c]) * (sky + (1.0 - ambient) * direct[r, c]) * tint[k]
                out[r, c, k] = np.uint8(min(255.0, max(0.0, value * (1.0 - haze) + 235.0 * haze)))
    return out


@njit(cache=True)
def _gentler(a: float, b: float) -> float:
    if a * b <= 0.0:
        return 0.0
    return a if abs(a) < abs(b) else b
