"""Object candidates in a bird's-eye view by colour and height above ground, without any model."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from wayfix.geo.boxes import WorldBox
from wayfix.geo.transforms import ViewTransform
from wayfix.policy.query import Description
from wayfix.views.view import View

CAR_AREA_M2 = (3.0, 45.0)
CAR_SIZE_M = (1.2, 14.0)
CAR_HEIGHT_M = (0.5, 4.2)
BUILDING_AREA_M2 = 20.0
BUILDING_HEIGHT_M = 2.5
FINEST_M_PER_PX = 0.1
"""A finer view is worked on at this resolution: nothing is gained below it."""

SIZE_OF = {"car": (3.6, 5.3), "van": (4.8, 6.9), "truck": (6.5, 10.5), "bus": (9.5, 14.0)}
"""Usual lengths in metres by kind of vehicle."""


@dataclass(frozen=True)
class Candidate:
    """An object seen in a view."""

    box: WorldBox
    looks: float
    """How well it fits the description, 0..1."""
    area_m2: float
    length_m: float
    height_m: float | None
    """Mean height above ground; None where the view has no heights."""


def find_candidates(view: View, described: Description) -> list[Candidate]:
    """All objects in a BEV view that fit a description's class, with how well each fits the rest of it."""
    assert view.transform is not None, "only BEV views are searched"
    image, heights, transform = _at_working_resolution(view, view.transform)
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    mask = _car_mask(hsv, heights, described) if described.kind == "car" else _building_mask(hsv, heights, described)
    m_per_px = transform.extent.width / transform.width
    find = _car if described.kind == "car" else _building
    found = []
    count, labels, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=4)
    for label in range(1, count):
        x, y, w, h, area = stats[label]
        if area * m_per_px**2 < CAR_AREA_M2[0] * 0.5:
            continue
        part = labels[y : y + h, x : x + w] == label
        pixels = hsv[y : y + h, x : x + w][part]
        height = None if heights is None else float(np.nanmean(heights[y : y + h, x : x + w][part]))
        candidate = find(part, pixels, height, m_per_px, described, _world(transform, x, y, w, h))
        if candidate is not None:
            found.append(candidate)
    return found


def _at_working_resolution(
    view: View, transform: ViewTransform
) -> tuple[NDArray[np.uint8], NDArray[np.float32] | None, ViewTransform]:
    image, heights = view.image, view.read_heights()
    width, height = round(transform.extent.width / FINEST_M_PER_PX), round(transform.extent.height / FINEST_M_PER_PX)
    if width >= transform.width:
        return image, heights, transform
    size = max(1, width), max(1, height)
    smaller = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    if heights is not None:
        heights = cv2.resize(heights, size, interpolation=cv2.INTER_LINEAR)
    return smaller, heights, ViewTransform.north_up(transform.extent, *size)


def _car_mask(hsv: NDArray[np.uint8], heights: NDArray[np.float32] | None, described: Description) -> NDArray[np.bool_]:
    """Pixels of vehicles: as high as one, and of the colour asked for or of none that plants have.

    Parked cars merge in the heights; the colour parts them again.
    """
    if described.color:
        mask = color_mask(hsv, described.color)
    elif heights is not None:
        mask = ~_plants(hsv)
    else:
        mask = (hsv[..., 1] > 140) | (hsv[..., 2] > 200)
    if heights is not None:
        mask &= (heights > CAR_HEIGHT_M[0]) & (heights < CAR_HEIGHT_M[1])
    return _smooth(mask, 3)


def _building_mask(
    hsv: NDArray[np.uint8], heights: NDArray[np.float32] | None, described: Description
) -> NDArray[np.bool_]:
    if heights is not None:
        return _smooth((heights > BUILDING_HEIGHT_M) & ~_plants(hsv), 7)
    return _smooth(color_mask(hsv, described.color) if described.color else ~_plants(hsv), 7)


def _car(
    part: NDArray[np.bool_],
    pixels: NDArray[np.uint8],
    height: float | None,
    m_per_px: float,
    described: Description,
    box: WorldBox,
) -> Candidate | None:
    length, width = _oriented_size(part, m_per_px)
    area = float(part.sum()) * m_per_px**2
    if not (CAR_AREA_M2[0] <= area <= CAR_AREA_M2[1] and length <= CAR_SIZE_M[1] and width >= CAR_SIZE_M[0] * 0.8):
        return None
    fill = area / max(length * width, 1e-6)
    shape = _within(width, 1.3, 3.2) * _within(length / max(width, 0.1), 1.5, 4.5) * min(1.0, fill / 0.75)
    size = _within(length, *SIZE_OF[described.category]) if described.category else 1.0
    color = float(_matches(pixels, described.color).mean()) if described.color else 1.0
    return Candidate(box, shape * (0.4 + 0.6 * size) * color, area, length, height)


def _building(
    part: NDArray[np.bool_],
    pixels: NDArray[np.uint8],
    height: float | None,
    m_per_px: float,
    described: Description,
    box: WorldBox,
) -> Candidate | None:
    area = float(part.sum()) * m_per_px**2
    if area < BUILDING_AREA_M2:
        return None
    length, width = _oriented_size(part, m_per_px)
    fill = area / max(length * width, 1e-6)
    color = min(1.0, float(_matches(pixels, described.color).mean()) / 0.5) if described.color else 1.0
    return Candidate(box, min(1.0, fill / 0.7) * color, area, length, height)


def color_mask(hsv: NDArray[np.uint8], color: str) -> NDArray[np.bool_]:
    """Pixels that a person would call by a colour word; `hsv` in OpenCV's 8-bit ranges (hue 0..179)."""
    return _matches(hsv.reshape(-1, 3), color).reshape(hsv.shape[:2])


def _matches(pixels: NDArray[np.uint8], color: str) -> NDArray[np.bool_]:
    h, s, v = pixels[:, 0], pixels[:, 1], pixels[:, 2]
    if color == "white":
        return (s < 45) & (v > 165)
    if color == "black":
        return v < 62
    if color in ("silver", "grey"):
        return (s < 48) & (v > 80) & (v < 205)
    if color == "brown":
        return ((h < 17) | (h > 172)) & (s > 60) & (s < 190) & (v > 40) & (v < 150)
    hue = {"red": (h < 7) | (h > 170), "orange": (h >= 7) & (h < 20), "yellow": (h >= 20) & (h < 34),
           "green": (h >= 50) & (h < 92), "blue": (h >= 95) & (h < 130)}[color]  # fmt: skip
    return hue & (s > (120 if color in ("red", "orange", "yellow") else 85)) & (v > (110 if color == "orange" else 60))


def _plants(hsv: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Pixels as leaves are: green to olive, neither bright nor strongly coloured."""
    h, s, v = hsv[..., 0], hsv[..., 1], hsv[..., 2]
    return (h >= 30) & (h < 75) & (s > 45) & (v < 150)


def _smooth(mask: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    """Close gaps such as windscreens, then drop specks and thin bridges."""
    kernel = cv2.getStructuringElement(cv2.MORPH_RECT, (size, size))
    closed = cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_CLOSE, kernel)
    return cv2.morphologyEx(closed, cv2.MORPH_OPEN, kernel).astype(bool)


def _oriented_size(part: NDArray[np.bool_], m_per_px: float) -> tuple[float, float]:
    """Length and width in metres of the smallest turned rectangle around a component."""
    contours, _ = cv2.findContours(part.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    _, (a, b), _ = cv2.minAreaRect(np.concatenate(contours))
    # Contours run through pixel centres: one pixel is missing in each direction.
    long, short = max(a, b) + 1, min(a, b) + 1
    return long * m_per_px, short * m_per_px


def _within(value: float, low: float, high: float) -> float:
    """1 inside a range, falling to 0 at half of `low` and at twice `high`."""
    if value < low:
        return max(0.0, (value - low / 2) / (low / 2))
    return 1.0 if value <= high else max(0.0, 1.0 - (value - high) / high)


def _world(transform: ViewTransform, x: int, y: int, w: int, h: int) -> WorldBox:
    x0, y1 = transform.pixel_to_world(float(x), float(y))
    x1, y0 = transform.pixel_to_world(float(x + w), float(y + h))
    return WorldBox(x0, y0, x1, y1)
