"""What a search was worth: equation 2 of Urbex, its shaping, and what the paper leaves open (docs/paper-choices.md).

Rewards come from the truth and are for the optimizer alone; no text a model reads depends on them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

from pydantic import BaseModel, ConfigDict, Field

from wayfix.errors import RewardNotFinite
from wayfix.geo.boxes import WorldBox, center_distance, iou_bev

Point = tuple[float, float]


class RewardConfig(BaseModel):
    """Weights; the defaults are the paper's where it states them (A.1). The switches are the rows of its Table 4."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    iou: float = Field(default=1.0, ge=0)
    distance: float = Field(default=0.3, ge=0)
    tau_m: float = Field(default=80.0, gt=0)
    step: float = Field(default=0.05, ge=0)
    use_distance: bool = True
    use_tools: bool = True
    """Shaping of zooms and oblique views. Invalid calls cost something either way: they are no shaping but errors."""
    zoom: float = Field(default=0.05, ge=0)
    """For a zoom whose centre is `tau_m` nearer to the target than the one before it, and at most for any zoom."""
    zoom_cap: float = Field(default=0.1, ge=0)
    """At most for all zooms of a trajectory, either way."""
    oblique: float = Field(default=0.05, ge=0)
    """For an oblique view that shows the whole target."""
    oblique_cap: float = Field(default=0.05, ge=0)
    invalid: float = Field(default=0.1, ge=0)
    """Taken off for each turn that could not be carried out."""
    not_found: float = Field(default=1.0, ge=0)
    """For a right "not found"."""


@dataclass(frozen=True)
class Trajectory:
    """What of an episode counts. World coordinates are the scene's CRS, metres."""

    turns: int
    max_turns: int
    start: Point
    """Centre of the scene: where the search begins."""
    answer: WorldBox | None = None
    """None where there was no box in the end."""
    said_not_found: bool = False
    zooms: tuple[Point, ...] = ()
    """Centres of the zooms, in order."""
    obliques: tuple[WorldBox, ...] = ()
    """Ground that oblique views showed."""
    invalid: int = 0


@dataclass(frozen=True)
class RewardParts:
    """A trajectory's reward by part; `total` is what is optimized."""

    iou: float = 0.0
    distance: float = 0.0
    step: float = 0.0
    zoom: float = 0.0
    oblique: float = 0.0
    invalid: float = 0.0
    not_found: float = 0.0
    total: float = field(init=False)

    def __post_init__(self) -> None:
        total = sum(getattr(self, part.name) for part in fields(self) if part.init)
        if not math.isfinite(total):
            raise RewardNotFinite(f"a reward is {total}: {self._finite_parts()}; is a box of the truth damaged?")
        object.__setattr__(self, "total", total)

    def _finite_parts(self) -> str:
        return ", ".join(f"{part.name} {getattr(self, part.name)}" for part in fields(self) if part.init)


def reward(trajectory: Trajectory, target: WorldBox | None, config: RewardConfig) -> RewardParts:
    """Equation 2 plus shaping (equation 3). `target` is None where the scene holds no such object.

    Raises RewardNotFinite.
    """
    step = -config.step * trajectory.turns / trajectory.max_turns
    invalid = -config.invalid * trajectory.invalid
    if target is None:
        right = config.not_found if trajectory.said_not_found else 0.0
        return RewardParts(step=step, invalid=invalid, not_found=right)
    iou = distance = 0.0
    if trajectory.answer is not None:
        iou = config.iou * iou_bev(trajectory.answer, target)
        if config.use_distance:
            away = center_distance(trajectory.answer, target)
            distance = config.distance * math.exp(-away / config.tau_m)
    zoom = zoom_progress(trajectory, target, config) if config.use_tools else 0.0
    oblique = oblique_overlap(trajectory, target, config) if config.use_tools else 0.0
    return RewardParts(iou, distance, step, zoom, oblique, invalid)


def zoom_progress(trajectory: Trajectory, target: WorldBox, config: RewardConfig) -> float:
    """For zooms that come nearer, against zooms that go away; the first is compared with the scene's centre."""
    total, last = 0.0, _away(trajectory.start, target)
    for center in trajectory.zooms:
        now = _away(center, target)
        total += config.zoom * max(-1.0, min(1.0, (last - now) / config.tau_m))
        last = now
    return max(-config.zoom_cap, min(config.zoom_cap, total))


def oblique_overlap(trajectory: Trajectory, target: WorldBox, config: RewardConfig) -> float:
    """By the share of the target that each oblique view showed."""
    total = 0.0
    for region in trajectory.obliques:
        shown = region.clipped(target)
        total += config.oblique * (shown.area / target.area if shown is not None else 0.0)
    return min(config.oblique_cap, total)


def _away(point: Point, target: WorldBox) -> float:
    return math.hypot(point[0] - target.center[0], point[1] - target.center[1])
