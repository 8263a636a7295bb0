"""What stands in each cell of a view: dense supervision for the vision encoder, which no model sees as input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from wayfix.geo.transforms import ViewTransform
from wayfix.synth.catalogue import CityObject
from wayfix.synth.colors import CAR_COLORS, ROOF_COLORS

CELL_PX = 16
"""One patch of the vision encoder."""
_SUB = 4
"""A cell is measured on a grid of this many points a side."""
_MIN_SHARE = 0.25
"""Of a cell or of an object: less of it does not count as standing there."""
NOTHING = -1

CLASSES: dict[tuple[str, str], int] = {
    pair: number
    for number, pair in enumerate(
        [(category, color) for category in ("car", "van", "truck", "bus") for color in CAR_COLORS]
        + [(category, color) for category in ("house", "block", "tower", "hall") for color in ROOF_COLORS]
    )
}
"""(category, colour) -> class of a cell."""


@dataclass(frozen=True)
class CellLabels:
    """Labels of a view of rows x columns cells."""

    rows: int
    columns: int
    present: NDArray[np.int32]
    """(N, 2): a cell's index and a class that stands in it; a cell may hold several."""
    main: NDArray[np.int16]
    """(rows * columns,) the class that fills most of the cell, cars before buildings, or NOTHING."""
    box: NDArray[np.float32]
    """(rows * columns, 4) left, top, right, bottom of that object from the cell's centre, in cells; 0 for NOTHING."""


def label_cells(objects: Sequence[CityObject], transform: ViewTransform, width: int, height: int) -> CellLabels:
    """Labels of a north-up view of width x height pixels, multiples of CELL_PX."""
    rows, columns = height // CELL_PX, width // CELL_PX
    step = CELL_PX / _SUB
    present: list[tuple[int, int]] = []
    main = np.full(rows * columns, NOTHING, np.int16)
    box = np.zeros((rows * columns, 4), np.float32)
    best = np.zeros(rows * columns, np.float32)
    sx, sy = width / transform.width, height / transform.height
    for item in objects:
        number = CLASSES.get((item.category, item.color))
        if number is None:
            continue
        corners = np.array([transform.world_to_pixel(x, y) for x, y in item.corners]) * (sx, sy)
        (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
        if right <= 0 or bottom <= 0 or left >= width or top >= height:
            continue
        for index, share in _cells_of(corners / step, rows, columns):
            present.append((index, number))
            weight = share + (2.0 if item.kind == "car" else 0.0)
            if weight > best[index]:
                best[index], main[index] = weight, number
                x, y = (index % columns + 0.5) * CELL_PX, (index // columns + 0.5) * CELL_PX
                box[index] = np.array([left - x, top - y, right - x, bottom - y]) / CELL_PX
    return CellLabels(rows, columns, np.array(present, np.int32).reshape(-1, 2), main, box)


def _cells_of(corners: NDArray[np.float64], rows: int, columns: int) -> list[tuple[int, float]]:
    """Cells an object stands in and the share of each that it fills; corners in points of the finer grid."""
    low = np.floor(corners.min(axis=0) / _SUB).astype(int)
    high = np.floor(corners.max(axis=0) / _SUB).astype(int) + 1
    size = (high - low) * _SUB
    mask = np.zeros((int(size[1]), int(size[0])), np.uint8)
    # fillPoly draws the edge as well; half a point to the middle keeps its size.
    cv2.fillPoly(mask, [np.round((corners - low * _SUB - 0.5) * 16).astype(np.int32)], 1, shift=4)
    counts = mask.reshape(high[1] - low[1], _SUB, high[0] - low[0], _SUB).sum(axis=(1, 3))
    total = max(1, int(counts.sum()))
    found = []
    for j, i in np.argwhere((counts >= _MIN_SHARE * _SUB * _SUB) | (counts >= _MIN_SHARE * total)):
        row, column = int(low[1] + j), int(low[0] + i)
        if 0 <= row < rows and 0 <= column < columns:
            found.append((row * columns + column, float(counts[j, i]) / (_SUB * _SUB)))
    return found
