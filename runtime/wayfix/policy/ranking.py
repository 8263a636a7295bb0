"""Ranks candidates by the relations of a query: how well each stands where the sentence says, 0..1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wayfix.geo.boxes import WorldBox, gap
from wayfix.geo.relations import (
    ALONG_ROAD_M,
    NEAR_GAP_M,
    NEXT_TO_GAP_M,
    direction_angle,
    point_to_line,
    road_side,
)
from wayfix.policy.detection import Candidate
from wayfix.policy.query import Description, Query, Relation


@dataclass(frozen=True)
class Place:
    """A landmark the episode has resolved: its box, and its line if it is a road; scene CRS, metres."""

    box: WorldBox
    line: tuple[tuple[float, float], ...] | None


@dataclass(frozen=True)
class Ranked:
    """A candidate and its score 0..1."""

    candidate: Candidate
    score: float


def rank(
    query: Query,
    targets: Sequence[Candidate],
    places: dict[str, Place],
    anchors: Callable[[Description], Sequence[Candidate]],
) -> list[Ranked]:
    """Score every target candidate, the best first. `anchors` finds the objects that an anchor's description fits."""
    scored = [Ranked(c, c.looks * math.prod(_fits(c, r, places, anchors) for r in query.relations)) for c in targets]
    if query.superlative:
        scored = _by_superlative(scored, query.superlative)
    if query.ordinal:
        scored = _by_ordinal(scored, query.ordinal, query.ordinal_from)
    return sorted(scored, key=lambda r: -r.score)


def _fits(
    candidate: Candidate,
    relation: Relation,
    places: dict[str, Place],
    anchors: Callable[[Description], Sequence[Candidate]],
) -> float:
    if relation.name:
        place = places.get(relation.name)
        return 1.0 if place is None else _fits_place(candidate.box, relation, place)
    assert relation.anchor is not None, "a relation has a name or a described anchor"
    if relation.anchor.kind is None:
        return 1.0
    others = [a for a in anchors(relation.anchor) if a.box != candidate.box]
    return max((a.looks * _fits_box(candidate.box, relation, a.box) for a in others), default=0.0)


def _fits_place(box: WorldBox, relation: Relation, place: Place) -> float:
    if relation.word == "side" and place.line:
        side, distance = road_side(box, place.line)
        matches = side is not None and side in relation.direction
        return (1.0 if matches else 0.05) * _falling(distance, ALONG_ROAD_M, 2 * ALONG_ROAD_M)
    if place.line:
        distance, x, y = point_to_line(*box.center, place.line)
        if relation.word == "direction":
            return _direction_score(box, WorldBox(x, y, x, y), relation.direction)
        reach = NEAR_GAP_M if relation.word == "near" else ALONG_ROAD_M
        return _falling(distance, reach, 2 * reach)
    return _fits_box(box, relation, place.box)


def _fits_box(box: WorldBox, relation: Relation, anchor: WorldBox) -> float:
    if relation.word in ("direction", "side"):
        return _direction_score(box, anchor, relation.direction)
    if relation.word == "next":
        return _falling(gap(box, anchor), NEXT_TO_GAP_M, 3 * NEXT_TO_GAP_M)
    if relation.word == "near":
        return _falling(gap(box, anchor), NEAR_GAP_M, 2 * NEAR_GAP_M)
    return 1.0 if anchor.grown(1.0).contains(*box.center) else 0.02


def _direction_score(box: WorldBox, anchor: WorldBox, direction: str) -> float:
    """1 straight in the direction, 0.75 at its half angle of 45 degrees, 0 beyond 65."""
    parts = direction.split("-")
    angle = max(direction_angle(box, anchor, part) for part in parts) - (45.0 if len(parts) == 2 else 0.0)
    angle = max(0.0, angle)
    return 1.0 - 0.25 * angle / 45.0 if angle <= 45.0 else max(0.0, 0.75 * (65.0 - angle) / 20.0)


def _falling(value: float, full: float, zero: float) -> float:
    return 1.0 if value <= full else max(0.0, (zero - value) / (zero - full))


_MEASURES: dict[str, Callable[[Candidate], float]] = {
    "tallest": lambda c: c.height_m if c.height_m is not None else c.area_m2,
    "lowest": lambda c: -(c.height_m if c.height_m is not None else c.area_m2),
    "largest": lambda c: c.area_m2,
    "smallest": lambda c: -c.area_m2,
    "longest": lambda c: c.length_m,
    "shortest": lambda c: -c.length_m,
    "north": lambda c: c.box.center[1],
    "south": lambda c: -c.box.center[1],
    "east": lambda c: c.box.center[0],
    "west": lambda c: -c.box.center[0],
}


def _plausible(scored: Sequence[Ranked]) -> list[Ranked]:
    best = max((r.score for r in scored), default=0.0)
    return [r for r in scored if r.score >= 0.5 * best and r.score > 0.0]


def _by_superlative(scored: Sequence[Ranked], superlative: str) -> list[Ranked]:
    """Among candidates that fit well enough, the extreme one keeps its score, each next one gets two thirds of it."""
    ordered = sorted(_plausible(scored), key=lambda r: -_MEASURES[superlative](r.candidate))
    return [Ranked(r.candidate, r.score * (2 / 3) ** i) for i, r in enumerate(ordered)]


def _by_ordinal(scored: Sequence[Ranked], ordinal: int, start: str) -> list[Ranked]:
    ordered = sorted(_plausible(scored), key=lambda r: -_MEASURES[start or "west"](r.candidate))
    return [Ranked(r.candidate, r.score * 0.5 ** min(abs(i - (ordinal - 1)), 9999)) for i, r in enumerate(ordered)]
