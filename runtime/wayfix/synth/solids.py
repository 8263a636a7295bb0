"""Drawing what stands up: buildings and trees, as colour and height. Vehicles are in `bodywork`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wayfix.synth.canvas import BUILDING, VEGETATION, Canvas, Window
from wayfix.synth.plan import Building, Footprint, Tree

MAX_HIDDEN = 0.22
"""A building or a vehicle may be hidden from above by trees to this share of its footprint."""


def scaled(rgb: tuple[int, int, int], factor: float) -> NDArray[np.uint8]:
    """The colour made brighter or darker, (3,) uint8."""
    return np.clip(np.array(rgb) * factor, 0, 255).astype(np.uint8)


def base_height(canvas: Canvas, footprint: Footprint) -> float:
    """Lowest ground under a footprint's corners, metres."""
    corners = footprint.corners()
    return float(canvas.terrain[canvas.cell(corners[:, 0], corners[:, 1])].min())


def draw_building(canvas: Canvas, building: Building, number: int, rng: np.random.Generator) -> None:
    """One building; `number` goes into the ids."""
    place = building.footprint
    window, u, v = canvas.around(place)
    inside = (np.abs(u) <= place.length / 2) & (np.abs(v) <= place.width / 2)
    z, color = _roof(building, u, v)
    base = base_height(canvas, place)
    window.albedo[inside] = color[inside]
    window.z[inside] = (base + z)[inside]
    window.grain[inside] = 7 if building.roof == "flat" else 5
    window.ids[inside] = number
    window.classes[inside] = BUILDING
    for unit in building.units:
        on_unit = (np.abs(u - unit.u) <= unit.length / 2) & (np.abs(v - unit.v) <= unit.width / 2)
        window.z[on_unit] = base + building.eave + unit.height
        window.albedo[on_unit] = scaled((182, 184, 187), float(rng.uniform(0.8, 1.1)))
    if building.roof == "flat":
        _skylights(window, building, u, v, rng)
    elif building.category == "house":
        _roof_windows(window, building, u, v, rng)


def _roof(
    building: Building, u: NDArray[np.float64], v: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Height above the base and colour at each pixel of a roof, without what stands on it."""
    place = building.footprint
    half_l, half_w = place.length / 2, place.width / 2
    color = np.empty((*u.shape, 3), np.uint8)
    color[:] = building.roof_rgb
    if building.roof == "flat":
        edge = np.minimum(half_l - np.abs(u), half_w - np.abs(v))
        rim = edge < 0.35
        color[rim] = scaled(building.roof_rgb, 0.78 if sum(building.roof_rgb) > 400 else 1.22)
        parapet = 0.35 if not building.units else min(0.35, building.height - building.eave)
        return building.eave + np.where(rim, parapet, 0.0), color
    rise = building.height - building.eave
    inward = half_w - np.abs(v)
    if building.roof == "hip":
        inward = np.minimum(inward, half_l - np.abs(u))
    courses = (inward / 0.4) % 1.0 < 0.3
    color[courses] = scaled(building.roof_rgb, 0.93)
    return building.eave + rise * np.clip(inward / half_w, 0, 1), color


def _skylights(
    window: Window, building: Building, u: NDArray[np.float64], v: NDArray[np.float64], rng: np.random.Generator
) -> None:
    """Rows of light strips on some large halls."""
    place = building.footprint
    if building.category != "hall" or rng.random() < 0.4:
        return
    step = float(rng.uniform(6, 9))
    strip = (np.abs((u + step / 2) % step - step / 2) < 0.6) & (np.abs(u) < place.length / 2 - 2)
    # Units stand higher than the roof and keep their own colour.
    on_roof = window.z <= np.float32(window.z[strip & (np.abs(v) < 1)].min(initial=np.inf) + 0.1)
    strip &= (np.abs(v) < place.width / 2 - 2.5) & on_roof
    window.albedo[strip] = scaled((205, 214, 220), float(rng.uniform(0.85, 1.05)))


def _roof_windows(
    window: Window, building: Building, u: NDArray[np.float64], v: NDArray[np.float64], rng: np.random.Generator
) -> None:
    """A chimney, and solar panels on a few houses."""
    place = building.footprint
    at = float(rng.uniform(-0.25, 0.25)) * place.length
    side = 1.0 if rng.random() < 0.5 else -1.0
    if rng.random() < 0.6:
        chimney = (np.abs(u - at) < 0.4) & (np.abs(v - side * 0.9) < 0.35)
        window.albedo[chimney] = (120, 84, 72)
    if rng.random() < 0.15:
        across = np.abs(v + side * place.width * 0.24)
        panel = (np.abs(u) < place.length * 0.18) & (across < place.width * 0.12)
        window.albedo[panel] = (34, 42, 62)
        window.albedo[panel & ((u % 1.0) < 0.12)] = (120, 126, 134)


def draw_trees(canvas: Canvas, trees: list[Tree], count: int, rng: np.random.Generator) -> list[Tree]:
    """Draw the trees that leave each of `count` objects visible; returns them in drawing order."""
    lumps = _lumps(rng)
    total = np.bincount(canvas.ids[canvas.ids >= 0], minlength=count)
    hidden = np.zeros(count, np.int64)
    drawn = []
    for tree in trees:
        reach = tree.radius * 1.25
        window = canvas.window((tree.x - reach, tree.y - reach), (tree.x + reach, tree.y + reach))
        z, texture = _crown(window, tree, lumps, rng)
        over = z > window.z
        under = window.ids[over]
        hides = np.bincount(under[under >= 0], minlength=count)
        # A trunk does not grow through a building: its own centre must be on the ground.
        center = window.classes[window.classes.shape[0] // 2, window.classes.shape[1] // 2]
        if center == BUILDING or ((hidden + hides)[hides > 0] > MAX_HIDDEN * total[hides > 0]).any():
            continue
        hidden += hides
        drawn.append(tree)
        shade = np.clip(np.array(tree.rgb) * (1.0 + texture[over][:, None]), 0, 255)
        window.albedo[over] = shade.astype(np.uint8)
        window.z[over] = z[over]
        window.grain[over] = 20
        window.ids[over] = -1
        window.classes[over] = VEGETATION
    return drawn


def _lumps(rng: np.random.Generator) -> NDArray[np.float32]:
    """(256, 256) smooth noise of unit spread: leaves in clumps of about half a metre."""
    noise = rng.standard_normal((256, 256)).astype(np.float32)
    spectrum = np.fft.rfft2(noise)
    fy, fx = np.fft.fftfreq(256)[:, None], np.fft.rfftfreq(256)[None, :]
    smooth = np.fft.irfft2(spectrum * np.exp(-(fx**2 + fy**2) * 300.0), s=(256, 256)).astype(np.float32)
    return (smooth / smooth.std()).astype(np.float32)


def _crown(
    window: Window, tree: Tree, lumps: NDArray[np.float32], rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Crown top height and relative brightness at each pixel; heights of -inf outside the crown."""
    dx, dy = window.x[None, :] - tree.x, window.y[:, None] - tree.y
    rows, cols = np.ix_(np.arange(len(window.y)) % 256, np.arange(len(window.x)) % 256)
    r, c = (int(k) for k in rng.integers(0, 256, 2))
    lump = lumps[(rows + r) % 256, (cols + c) % 256]
    phase = rng.uniform(0, 2 * np.pi, 2)
    bearing = np.arctan2(dy, dx)
    edge = tree.radius * (1 + 0.1 * np.sin(3 * bearing + phase[0]) + 0.07 * np.sin(5 * bearing + phase[1]))
    share = np.hypot(dx, dy) / (edge * (1 + 0.06 * lump))
    dome = np.sqrt(np.clip(1 - share**2, 0, 1))
    z = window.terrain + tree.height * (0.5 + 0.5 * dome) + 0.22 * lump
    return np.where(share < 1, z, -np.inf).astype(np.float32), (0.1 * lump).astype(np.float32)
