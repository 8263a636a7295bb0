"""How one predicted box compares with the target and with every candidate of its scene (Urbex 4.1 and D.5).

Boxes are rows `min_x, min_y, max_x, max_y` in metres, float64. Ties always count against the target.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wayfix.geo.boxes import WorldBox
from wayfix.scene.points import PointStore

Boxes = NDArray[np.float64]
"""(N, 4)"""


def flat(box: WorldBox) -> Boxes:
    """A box as one row (4,)."""
    return np.array([box.min_x, box.min_y, box.max_x, box.max_y])


def iou_with(box: Boxes, candidates: Boxes) -> NDArray[np.float64]:
    """BEV IoU of one box (4,) with each of N (N, 4): (N,), 0..1."""
    inter, union, _ = _overlaps(box, candidates)
    return np.divide(inter, union, out=np.zeros_like(inter), where=union > 0)


def ciou_with(box: Boxes, candidates: Boxes) -> NDArray[np.float64]:
    """Complete IoU (Zheng et al. 2020): IoU less the squared centre distance over the squared diagonal of the common
    hull, less a penalty for another aspect ratio. (N,), below or equal to 1, negative for boxes far apart.
    """
    iou = iou_with(box, candidates)
    _, _, hull = _overlaps(box, candidates)
    diagonal = (hull**2).sum(axis=1)
    distance = (((box[:2] + box[2:]) / 2 - (candidates[:, :2] + candidates[:, 2:]) / 2) ** 2).sum(axis=1)
    size, sizes = box[2:] - box[:2], candidates[:, 2:] - candidates[:, :2]
    aspect = 4 / np.pi**2 * (np.arctan2(sizes[:, 0], sizes[:, 1]) - np.arctan2(size[0], size[1])) ** 2
    weight = np.divide(aspect, 1 - iou + aspect, out=np.zeros_like(aspect), where=aspect > 0)
    return iou - distance / diagonal - weight * aspect


def rank_of(target: int, scores: NDArray[np.float64]) -> int:
    """The target's place, 1 the best, when candidates are ordered by score; equals stand before the target."""
    return int(1 + np.count_nonzero(np.delete(scores, target) >= scores[target]))


def rank_where_positive(target: int, scores: NDArray[np.float64]) -> int | None:
    """The same among candidates with a positive score only; None where the target has none."""
    return rank_of(target, scores) if scores[target] > 0 else None


def point_f1(points: PointStore, answer: WorldBox, target: WorldBox) -> float | None:
    """F1 of the points inside the answer against those inside the target; heights bound where both boxes have them.

    None where no point lies in the target. Instances have no labels here: the target's points are those of its box.
    """
    if None in (answer.min_z, answer.max_z, target.min_z, target.max_z):
        answer, target = (WorldBox(b.min_x, b.min_y, b.max_x, b.max_y) for b in (answer, target))
    wanted = len(points.read(target).xyz)
    if wanted == 0:
        return None
    common = _intersection(answer, target)
    hit = len(points.read(common).xyz) if common is not None else 0
    return 2 * hit / (wanted + len(points.read(answer).xyz))


def _overlaps(box: Boxes, candidates: Boxes) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Areas of intersection and union (N,), sizes of the common hulls (N, 2)."""
    low, high = np.maximum(box[:2], candidates[:, :2]), np.minimum(box[2:], candidates[:, 2:])
    inter = np.clip(high - low, 0, None).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + (candidates[:, 2:] - candidates[:, :2]).prod(axis=1) - inter
    hull = np.maximum(box[2:], candidates[:, 2:]) - np.minimum(box[:2], candidates[:, :2])
    return inter, union, hull


def _intersection(a: WorldBox, b: WorldBox) -> WorldBox | None:
    common = a.clipped(b)
    if common is None or a.min_z is None or a.max_z is None or b.min_z is None or b.max_z is None:
        return common
    low, high = max(a.min_z, b.min_z), min(a.max_z, b.max_z)
    return WorldBox(common.min_x, common.min_y, common.max_x, common.max_y, low, high) if low <= high else None
