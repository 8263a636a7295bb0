"""Oblique views rendered from a scene's points: orthographic, 45 degrees down, from one of four sides."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wayfix.errors import InvalidArguments
from wayfix.geo.boxes import WorldBox
from wayfix.scene.points import POINT, PointStore, TileSpans

FORWARD = {"north": (0.0, -1.0), "south": (0.0, 1.0), "east": (-1.0, 0.0), "west": (1.0, 0.0)}
"""Where the camera stands -> the ground direction (x, y) it looks in."""

BACKGROUND = 205
"""Grey value of pixels that show no point."""

_POINTS_PER_PIXEL = 3
_MAX_SPLAT_PX = 5
_HALF_SQRT = math.sqrt(0.5)  # sine and cosine of the camera's elevation
_NOISE_LOW, _NOISE_HIGH = 7, 18  # ASPRS classes; one bird at 500 m would shrink the city to a stripe
_DEPTH_STEPS_PER_M = 1000.0
_EMPTY = np.int64(2**63 - 1)
_WIDEST_HOLE = 6  # point spacings; seen from the air, walls get that much fewer points, and streets are wider
_FILL_PASSES = ((1, 5), (2, 6), (4, 6))  # block in px, how many of 8 must be nearer; 6 keeps straight edges straight


@dataclass(frozen=True)
class ObliqueImage:
    """One oblique view."""

    image: NDArray[np.uint8]
    """RGB, uint8 (H, W, 3); the longer side is the size asked for."""
    coverage: float
    """Fraction of pixels that a point was drawn on, before small holes were filled, 0..1."""
    direction: str
    """Where the camera stands: north, south, east or west."""
    region: WorldBox
    """What was asked for; scene CRS, metres."""
    m_per_px: float
    """Metres per pixel in the image plane; ground along the line of sight is foreshortened by sqrt(1/2)."""


def render_oblique(store: PointStore, region: WorldBox, direction: str, size_px: int = 512) -> ObliqueImage:
    """Render the points above the ground rectangle of `region`, seen from `direction` at 45 degrees.

    The image holds exactly the rectangle with the height range of its points; heights of `region` are not used. From
    the north, east is on the left. Raises InvalidArguments for an unknown direction, an empty region or a size below
    1, SceneCorrupt where a tile does not match its checksum.
    """
    if direction not in FORWARD:
        raise InvalidArguments(f"direction is one of {', '.join(FORWARD)}; got {direction!r}")
    if not (0 < region.width < math.inf and 0 < region.height < math.inf) or size_px < 1:
        raise InvalidArguments(
            f"an oblique view needs a region with area and at least 1 px, got {region}, {size_px} px"
        )
    ground = WorldBox(region.min_x, region.min_y, region.max_x, region.max_y)
    spans = store.spans(ground, _POINTS_PER_PIXEL * size_px * size_px)
    floats, words = _columns(spans)
    # Offsets from the region's centre keep full accuracy in float32 and make turning the camera a change of sign.
    cx, cy = ground.center
    origin = (spans.origin - (cx, cy, 0.0)).astype(np.float64)
    half = (region.width / 2, region.height / 2)  # floats even for a box of integers: one numba build serves all
    low, high = _height_range(floats, words, spans.start, spans.stop, origin, half)

    fx, fy = FORWARD[direction]
    across, along = (2 * half[0], 2 * half[1]) if fx == 0 else (2 * half[1], 2 * half[0])
    tall = (along + max(high - low, 0.0)) * _HALF_SQRT
    m_per_px = max(across, tall) / size_px
    width, height = (max(1, min(size_px, math.ceil(v / m_per_px - 1e-6))) for v in (across, tall))
    spacing = 1 / math.sqrt(spans.density) if spans.density > 0 else 0.0
    # Squares somewhat larger than the spacing: points lie irregularly, and a gap shows what is behind a wall.
    splat = min(max(math.ceil(1.4 * spacing / m_per_px), 1), _MAX_SPLAT_PX)

    pixels = np.full((height, width), _EMPTY)
    if low <= high:
        camera = (fx, fy, high, 1 / m_per_px, along)
        _splat(floats, words, spans.start, spans.stop, origin, half, camera, splat, pixels)
    coverage = float((pixels != _EMPTY).mean())
    for block, majority in _FILL_PASSES:
        if block > max(1.0, _WIDEST_HOLE * spacing / m_per_px):
            break
        # A wall recedes by about a pixel's size per row, so coarser blocks have to tell apart larger differences.
        gap = max(4 * spacing, 3 * block * m_per_px, 0.5)
        pixels = _fill(pixels, block, majority, int(gap * _DEPTH_STEPS_PER_M))
    return ObliqueImage(_colours(pixels), coverage, direction, region, m_per_px)


def _columns(spans: TileSpans) -> tuple[NDArray[np.float32], NDArray[np.uint32]]:
    """The store's records as float32 (N, 4) and as uint32 (N, 4); word 3 is r | g << 8 | b << 16 | class << 24."""
    words = POINT.itemsize // 4
    return spans.records.view("<f4").reshape(-1, words), spans.records.view("<u4").reshape(-1, words)


@njit(cache=True, nogil=True)
def _shown(x: float, y: float, word: int, half: tuple[float, float]) -> bool:
    """Whether a point lies inside the rectangle and is no noise."""
    cls = word >> 24
    return abs(x) <= half[0] and abs(y) <= half[1] and cls != _NOISE_LOW and cls != _NOISE_HIGH


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def _height_range(
    floats: NDArray[np.float32],
    words: NDArray[np.uint32],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    origin: NDArray[np.float64],
    half: tuple[float, float],
) -> tuple[float, float]:
    """Lowest and highest z in metres of the points shown; (inf, -inf) where there are none."""
    low, high = np.inf, -np.inf
    for t in range(len(start)):
        ox, oy, oz = origin[t]
        for i in range(start[t], stop[t]):
            if _shown(ox + floats[i, 0], oy + floats[i, 1], words[i, 3], half):
                z = oz + floats[i, 2]
                low = min(low, z)
                high = max(high, z)
    return low, high


@njit(cache=True, nogil=True, fastmath={"contract", "reassoc", "nsz"})
def _splat(
    floats: NDArray[np.float32],
    words: NDArray[np.uint32],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    origin: NDArray[np.float64],
    half: tuple[float, float],
    camera: tuple[float, float, float, float, float],
    splat: int,
    pixels: NDArray[np.int64],
) -> None:
    """Draw squares of `splat` pixels; a pixel is depth << 32 | colour, so the smallest value is the nearest point."""
    fx, fy, top, px_per_m, along = camera
    height, width = pixels.shape
    before = (splat - 1) // 2
    for t in range(len(start)):
        ox, oy, oz = origin[t]
        for i in range(start[t], stop[t]):
            x, y, word = ox + floats[i, 0], oy + floats[i, 1], words[i, 3]
            if not _shown(x, y, word, half):
                continue
            right = x * fy - y * fx
            ahead = x * fx + y * fy + along / 2  # 0 at the edge nearest to the camera
            below = top - (oz + floats[i, 2])  # 0 at the highest point
            col = int(right * px_per_m + width / 2) - before
            row = int((along - ahead + below) * _HALF_SQRT * px_per_m) - before
            depth = np.int64(max((ahead + below) * _HALF_SQRT, 0.0) * _DEPTH_STEPS_PER_M)
            value = depth << 32 | np.int64(word & np.uint32(0xFFFFFF))
            for r in range(max(row, 0), min(row + splat, height)):
                for c in range(max(col, 0), min(col + splat, width)):
                    pixels[r, c] = min(pixels[r, c], value)  # no branch: half of them would be mispredicted


@njit(cache=True, nogil=True)
def _fill(pixels: NDArray[np.int64], block: int, majority: int, gap: int) -> NDArray[np.int64]:
    """Close holes of about `block` pixels: a pixel behind `majority` of the 8 blocks around its own takes the nearest.

    A block is as near as its nearest pixel. An empty pixel lies behind all others, so a hole in a wall through which
    something far away shows and a hole through which nothing shows are the same case. `gap` is how far behind counts,
    in depth steps.
    """
    height, width = pixels.shape
    blocks = np.full(((height - 1) // block + 3, (width - 1) // block + 3), _EMPTY)  # one more on every side
    for r in range(height):
        for c in range(width):
            br, bc = r // block + 1, c // block + 1
            blocks[br, bc] = min(blocks[br, bc], pixels[r, c])
    step = np.int64(gap) << 32
    filled = pixels.copy()
    for r in range(height):
        br = r // block
        for c in range(width):
            here = pixels[r, c]
            if here < step:
                continue
            bc = c // block
            limit = here - step
            nearer = 0
            nearest = blocks[br + 1, bc + 1]
            for k in range(9):
                value = blocks[br + k // 3, bc + k % 3]
                nearer += k != 4 and value < limit
                nearest = min(nearest, value)
            if nearer >= majority:
                filled[r, c] = nearest
    return filled


@njit(cache=True, nogil=True)
def _colours(pixels: NDArray[np.int64]) -> NDArray[np.uint8]:
    """uint8 (H, W, 3) of the pixels' colours, BACKGROUND where there is none."""
    height, width = pixels.shape
    image = np.empty((height, width, 3), np.uint8)
    for r in range(height):
        for c in range(width):
            value = pixels[r, c]
            for k in range(3):
                image[r, c, k] = BACKGROUND if value == _EMPTY else (value >> (8 * k)) & 255
    return image
