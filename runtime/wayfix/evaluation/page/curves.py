"""The curves of a page, from outcomes under clean landmarks; every point has its interval and its number of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wayfix.evaluation.figures import Bin, Figure, figure
from wayfix.evaluation.outcome import Outcome

THRESHOLDS = tuple(step / 20 for step in range(21))
CONFIDENCE_BINS = 10


@dataclass(frozen=True)
class Calibration:
    """Confidence against how often the answer was right, by bins of equal width."""

    points: list[tuple[float, Figure]]
    """Mean confidence of a bin, and the share of right answers in it; empty bins are left out."""
    error: float | None
    """Expected calibration error, 0..1: how far confidence is from that share, averaged over queries."""
    n: int


def hit_by_iou(outcomes: Sequence[Outcome]) -> list[tuple[float, Figure]]:
    """Hit@1 where the answer must also have an IoU of at least so much (Urbex, Equation 6)."""
    ranked = _ranked(outcomes)

    def at_least(threshold: float) -> Figure:
        return figure(ranked, lambda o: o.hit() and (o.iou_2d or 0.0) >= threshold)

    return [(threshold, at_least(threshold)) for threshold in THRESHOLDS] if ranked else []


def hit_by_turns(outcomes: Sequence[Outcome]) -> list[Bin]:
    """Hit@1 of the searches that took so many turns."""
    ranked = _ranked(outcomes)
    counts = range(min(o.turns for o in ranked), max(o.turns for o in ranked) + 1) if ranked else ()
    return [
        Bin(name=str(count), figure=figure([o for o in ranked if o.turns == count], lambda o: o.hit()))
        for count in counts
    ]


def calibration(outcomes: Sequence[Outcome]) -> Calibration:
    """Of all outcomes with a confidence of which it is known whether they are right."""
    known = [(o.confidence, o) for o in outcomes if o.confidence is not None and (o.target is None or o.candidates)]
    points, error = [], 0.0
    for number in range(CONFIDENCE_BINS):
        part = [(c, o) for c, o in known if min(int(c * CONFIDENCE_BINS), CONFIDENCE_BINS - 1) == number]
        if part:
            mean = sum(c for c, _ in part) / len(part)
            right = figure([o for _, o in part], lambda o: o.right)
            points.append((mean, right))
            error += len(part) / len(known) * abs(mean - (right.value or 0.0))
    return Calibration(points, error if known else None, len(known))


def _ranked(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [o for o in outcomes if o.target is not None and o.candidates]
