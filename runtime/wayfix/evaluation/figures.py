"""Figures of many outcomes, with 95 % intervals from resampling whole scenes: queries of one are not independent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from wayfix.evaluation.outcome import Outcome

RESAMPLES = 2000
INTERVAL = (2.5, 97.5)
DISTANCE_BINS_M = (0.0, 50.0, 100.0, 200.0, float("inf"))
DISTRACTOR_BINS = (0, 1, 4, 10, float("inf"))
"""Lower ends of the bins of Urbex, Table 16."""

IOU_THRESHOLDS = (0.25, 0.5)

Value = Callable[[Outcome], "float | bool | None"]
Statistic = Callable[[NDArray[np.float64]], float]


class Figure(BaseModel):
    """A figure, and the interval that holds it in 95 % of resamples; None where there was nothing to measure."""

    model_config = ConfigDict(extra="forbid")

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int
    """Queries it was measured on."""


class Bin(BaseModel):
    """A figure of those queries that fall into one bin."""

    model_config = ConfigDict(extra="forbid")

    name: str
    figure: Figure


def accuracy(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """Every accuracy figure of outcomes under one condition; Hit@k and overlap are of queries with a target."""
    found = [o for o in outcomes if o.target is not None]
    ranked = [o for o in found if o.candidates]
    figures = {"right": figure(outcomes, lambda o: o.right)}
    for rule, rank in RANKS.items():
        for k in (1, 3, 5):
            figures[f"hit@{k}{rule}"] = figure(ranked, partial(_within, rank, k))
    for threshold in IOU_THRESHOLDS:
        figures[f"hit@1_iou>={threshold:g}"] = figure(ranked, partial(_tight_hit, threshold))
    figures |= {
        "iou_2d": figure(found, lambda o: o.iou_2d),
        "iou_3d": figure(found, lambda o: o.iou_3d),
        "point_f1": figure(found, lambda o: o.point_f1),
        "overlapped_mean": figure(found, lambda o: o.overlapped),
        "overlapped_median": figure(found, lambda o: o.overlapped, np.median),
        "overlapped_iou>=0.25_mean": figure(found, lambda o: o.overlapped_well),
        "overlapped_iou>=0.25_median": figure(found, lambda o: o.overlapped_well, np.median),
        "area_ratio_median": figure(found, lambda o: o.area_ratio, np.median),
        "area_ratio_p75": figure(found, lambda o: o.area_ratio, _percentile(75)),
        "area_ratio_p90": figure(found, lambda o: o.area_ratio, _percentile(90)),
        "regional_success": figure(found, lambda o: o.region_reached),
        "local_success": figure([o for o in ranked if o.region_reached], lambda o: o.hit()),
        "not_found_precision": figure(outcomes, lambda o: (o.target is None) if o.code == "not_found" else None),
        "not_found_recall": figure(outcomes, lambda o: (o.code == "not_found") if o.target is None else None),
    }
    return figures


RANKS: dict[str, Callable[[Outcome], int | None]] = {
    "": lambda o: o.rank,
    "_positive": lambda o: o.rank_positive,
    "_ciou": lambda o: o.rank_ciou,
}
"""The matching rules of Urbex, Table 12: BEV IoU, the same with zero overlaps left out, and CIoU."""


def effort(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """What the searches took, other than time."""
    return {
        "turns": figure(outcomes, lambda o: o.turns),
        "tool_calls": figure(outcomes, lambda o: sum(o.tool_calls.values())),
        "invalid_calls": figure(outcomes, lambda o: o.invalid_calls),
        "prompt_tokens": figure(outcomes, lambda o: o.prompt_tokens),
        "completion_tokens": figure(outcomes, lambda o: o.completion_tokens),
        "partial": figure(outcomes, lambda o: o.partial),
        "failed": figure(outcomes, lambda o: o.code not in ("ok", "not_found")),
    }


def times(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """Milliseconds a query: the whole, the policy, and each tool where it was used."""
    tools = sorted({name for o in outcomes for name in o.tool_ms})
    parts: dict[str, list[float]] = {
        "query": [o.total_ms for o in outcomes],
        "policy": [o.policy_ms for o in outcomes],
        **{name: [o.tool_ms[name] for o in outcomes if name in o.tool_ms] for name in tools},
    }
    return {
        name: {
            "n": len(ms),
            **{f"p{p}_ms": round(float(np.percentile(ms, p)), 3) for p in (50, 95, 99)},
        }
        for name, ms in parts.items()
        if ms
    }


def by_kind(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Figure]]:
    """Accuracy by kind of query, where kinds are known."""
    kinds = sorted({o.kind for o in outcomes if o.kind is not None})
    parts = {kind: [o for o in outcomes if o.kind == kind] for kind in kinds}
    names = ("right", "hit@1", "iou_2d")
    return {kind: {name: f for name, f in accuracy(part).items() if name in names} for kind, part in parts.items()}


def regional_by_distance(outcomes: Sequence[Outcome]) -> list[Bin]:
    """Regional success by distance from target to landmark (Urbex, Table 16)."""
    known = [(o.landmark_distance_m, o) for o in outcomes if o.target is not None and o.landmark_distance_m is not None]
    return [
        Bin(
            name=_range(low, high, " m"),
            figure=figure([o for d, o in known if low <= d < high], lambda o: o.region_reached),
        )
        for low, high in pairwise(DISTANCE_BINS_M)
    ]


def local_by_distractors(outcomes: Sequence[Outcome]) -> list[Bin]:
    """Local success, Hit@1 given that the region was reached, by same-class distractors within 50 m (Table 16)."""
    known = [
        (o.distractors_50m, o) for o in outcomes if o.region_reached and o.distractors_50m is not None and o.candidates
    ]
    return [
        Bin(name=_whole(low, high), figure=figure([o for d, o in known if low <= d < high], lambda o: o.hit()))
        for low, high in pairwise(DISTRACTOR_BINS)
    ]


def figure(outcomes: Sequence[Outcome], value: Value, statistic: Statistic = np.mean) -> Figure:
    """A statistic of the outcomes that have the value, and its interval over resampled scenes.

    With one scene only, queries are resampled instead.
    """
    known = [(o.scene, v) for o in outcomes if (v := value(o)) is not None]
    if not known:
        return Figure(value=None, n=0)
    values = np.array([float(v) for _, v in known])
    low, high = np.percentile(resampled([scene for scene, _ in known], values, statistic), INTERVAL)
    return Figure(value=_rounded(statistic(values)), low=_rounded(low), high=_rounded(high), n=len(values))


def resampled(
    scenes: Sequence[str], values: NDArray[np.float64], statistic: Statistic = np.mean
) -> NDArray[np.float64]:
    """The statistic in each of RESAMPLES samples of whole scenes drawn with replacement: (RESAMPLES,)."""
    names = sorted(set(scenes))
    rng = np.random.default_rng(0)  # the same data has the same interval
    group = np.searchsorted(names, scenes) if len(names) > 1 else np.arange(len(values))
    count = int(group.max()) + 1
    if statistic is np.mean:
        draws = rng.multinomial(count, np.full(count, 1 / count), RESAMPLES)
        totals, sizes = np.bincount(group, values, count), np.bincount(group, minlength=count)
        return (draws @ totals) / (draws @ sizes)
    members = [values[group == g] for g in range(count)]
    return np.array(
        [statistic(np.concatenate([members[g] for g in rng.integers(0, count, count)])) for _ in range(RESAMPLES)]
    )


def _within(rank: Callable[[Outcome], int | None], k: int, outcome: Outcome) -> bool:
    place = rank(outcome)
    return place is not None and place <= k


def _tight_hit(threshold: float, outcome: Outcome) -> bool:
    """Equation 6 of Urbex, for one query."""
    return outcome.hit() and (outcome.iou_2d or 0.0) >= threshold


def _percentile(p: float) -> Statistic:
    return lambda values: float(np.percentile(values, p))


def _range(low: float, high: float, unit: str) -> str:
    if low == 0:
        return f"< {high:g}{unit}"
    return f">= {low:g}{unit}" if high == float("inf") else f"{low:g}-{high:g}{unit}"


def _whole(low: float, high: float) -> str:
    if high == float("inf"):
        return f">= {low:g}"
    return f"{low:g}" if high == low + 1 else f"{low:g}-{high - 1:g}"


def _rounded(value: float) -> float:
    return round(float(value), 6)
