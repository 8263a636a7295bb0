"""What became of one query: everything that figures, comparisons and pages are made from."""

from __future__ import annotations

from collections import Counter

import numpy as np
from pydantic import BaseModel, ConfigDict

from wayfix.agent.result import GroundResult
from wayfix.agent.trace import Trace
from wayfix.evaluation.matching import ciou_with, flat, iou_with, point_f1, rank_of, rank_where_positive
from wayfix.evaluation.queries import Case, QuerySet
from wayfix.geo.boxes import WorldBox, iou_3d, iou_bev
from wayfix.scene.scene import Scene

WorldRow = tuple[float, float, float, float, float | None, float | None]
"""min_x, min_y, max_x, max_y, min_z, max_z: scene CRS, metres; heights None where not known."""

GOOD_OVERLAP = 0.25
"""The IoU from which an overlapped candidate counts as strongly overlapped (Urbex, Table 14)."""


class Outcome(BaseModel):
    """One query under one landmark condition, scored. Fractions are 0..1, lengths metres, times milliseconds."""

    model_config = ConfigDict(extra="forbid")

    id: str
    scene: str
    query: str
    kind: str | None
    condition: str
    """How landmarks answered: clean, missing, noisy or wrong."""
    landmark: str | None
    """The name in the query, as the scene has it."""
    landmark_distance_m: float | None
    distractors_50m: int | None
    target: WorldRow | None
    """None where the query names nothing in the scene."""

    code: str
    partial: bool
    answer: WorldRow | None
    confidence: float | None
    turns: int
    invalid_calls: int
    tool_calls: dict[str, int]
    prompt_tokens: int | None
    """All turns together; None where the policy has no tokens."""
    completion_tokens: int | None
    policy_ms: float
    tool_ms: dict[str, float]
    """By tool, all its calls together."""
    total_ms: float

    candidates: int
    """How many objects the target was ranked among; 0 where they are not known, then ranks are None."""
    rank: int | None = None
    """By BEV IoU, 1 the best, ties against the target; None where there is no answer or no target."""
    rank_positive: int | None = None
    """Among candidates the answer overlaps at all."""
    rank_ciou: int | None = None
    iou_2d: float | None = None
    """None where there is no target; 0 where there is no answer."""
    iou_3d: float | None = None
    """As iou_2d, None also where heights are not known."""
    point_f1: float | None = None
    overlapped: int | None = None
    """Candidates the answer overlaps at all; None where there is no answer."""
    overlapped_well: int | None = None
    """Candidates it overlaps with IoU of at least 0.25."""
    area_ratio: float | None = None
    """Area of the answer over that of the target."""
    region_reached: bool | None = None
    """Some zoom contains the target's centre."""

    def hit(self, k: int = 1) -> bool:
        """Whether the target is among the k candidates the answer overlaps best."""
        return self.rank is not None and self.rank <= k

    @property
    def right(self) -> bool | None:
        """A hit, or a right 'not found'; None where candidates are not known and a hit cannot be told."""
        if self.target is None:
            return self.code == "not_found"
        return self.hit() if self.candidates else None


def score(case: Case, queries: QuerySet, scene: Scene, condition: str, result: GroundResult, trace: Trace) -> Outcome:
    """Score what a search gave. The best region of a search that ended early counts as its answer."""
    tool_ms: Counter[str] = Counter()
    for turn in trace.turns:
        if turn.action not in ("answer", "not_found"):
            tool_ms[turn.action] += turn.tool_ms  # type: ignore[assignment]
    calls = Counter(turn.action for turn in trace.turns)
    outcome = Outcome(
        id=case.id,
        scene=scene.id,
        query=case.query,
        kind=case.kind,
        condition=condition,
        landmark=case.landmark,
        landmark_distance_m=case.landmark_distance_m,
        distractors_50m=case.distractors_50m,
        target=row(case.box),
        code=result.code,
        partial=result.partial,
        answer=row(result.box),
        confidence=result.confidence,
        turns=result.turns,
        invalid_calls=calls.pop("invalid", 0),
        tool_calls={name: n for name, n in sorted(calls.items()) if name not in ("answer", "not_found")},
        prompt_tokens=_total([turn.prompt_tokens for turn in trace.turns]),
        completion_tokens=_total([turn.completion_tokens for turn in trace.turns]),
        policy_ms=round(sum(turn.policy_ms for turn in trace.turns), 3),
        tool_ms={name: round(ms, 3) for name, ms in sorted(tool_ms.items())},
        total_ms=round(result.time_ms, 3),
        candidates=len(queries.candidates),
    )
    if case.box is not None:
        _compare(outcome, case.box, result.box, queries, scene)
        outcome.region_reached = _reached(trace, case.box)
    return outcome


def row(box: WorldBox | None) -> WorldRow | None:
    """A box as it is stored."""
    return None if box is None else (box.min_x, box.min_y, box.max_x, box.max_y, box.min_z, box.max_z)


def _compare(outcome: Outcome, target: WorldBox, answer: WorldBox | None, queries: QuerySet, scene: Scene) -> None:
    outcome.iou_2d, outcome.iou_3d = 0.0, None if target.min_z is None else 0.0
    if scene.points is not None:
        outcome.point_f1 = point_f1(scene.points, answer, target) if answer is not None else 0.0
    if answer is None:
        return
    outcome.iou_2d, outcome.iou_3d = iou_bev(answer, target), iou_3d(answer, target)
    outcome.area_ratio = answer.area / target.area
    number = queries.number_of(target)
    if number is not None:
        overlaps = iou_with(flat(answer), queries.candidates)
        outcome.rank = rank_of(number, overlaps)
        outcome.rank_positive = rank_where_positive(number, overlaps)
        outcome.rank_ciou = rank_of(number, ciou_with(flat(answer), queries.candidates))
        outcome.overlapped = int(np.count_nonzero(overlaps > 0))
        outcome.overlapped_well = int(np.count_nonzero(overlaps >= GOOD_OVERLAP))


def _reached(trace: Trace, target: WorldBox) -> bool:
    """Regional success (Urbex, D.6): some zoom of the trajectory contains the target's centre."""
    zooms = {turn.view_id for turn in trace.turns if turn.action == "zoom_in"}
    return any(WorldBox(*view.region).contains(*target.center) for view in trace.views if view.id in zooms)


def _total(counts: list[int | None]) -> int | None:
    known = [n for n in counts if n is not None]
    return sum(known) if known else None
