"""Figures of hand-made outcomes, and the intervals of resampled scenes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wayfix.errors import NotComparable
from wayfix.evaluation.compare import compare
from wayfix.evaluation.figures import (
    accuracy,
    by_kind,
    effort,
    figure,
    local_by_distractors,
    regional_by_distance,
    resampled,
    times,
)
from wayfix.evaluation.outcome import Outcome
from wayfix.evaluation.report import EvalReport, RunConfig, make_report

BOX = (0.0, 0.0, 4.0, 2.0, None, None)


def outcome(number: int, scene: str = "a", **changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "id": f"q{number}", "scene": scene, "query": f"thing {number}", "kind": "landmark", "condition": "clean",
        "landmark": "Hall", "landmark_distance_m": 60.0, "distractors_50m": 2, "target": BOX, "code": "ok",
        "partial": False, "answer": BOX, "confidence": None, "turns": 3, "invalid_calls": 0,
        "tool_calls": {"zoom_in": 1},
        "prompt_tokens": None, "completion_tokens": None, "policy_ms": 10.0, "tool_ms": {"zoom_in": 5.0},
        "total_ms": 20.0, "candidates": 10, "rank": 1, "rank_positive": 1, "rank_ciou": 1, "iou_2d": 1.0,
        "area_ratio": 1.0, "overlapped": 1, "overlapped_well": 1, "region_reached": True,
    }  # fmt: skip
    return Outcome(**(values | changes))


def report(outcomes: list[Outcome], **changes: Any) -> EvalReport:
    values: dict[str, Any] = {
        "suite": "synth", "suite_sha256": "", "scenes": 2, "queries": len(outcomes), "seed": 0, "policy": "p",
        "workflow": "free", "turns": 8, "tools": [], "conditions": ["clean", "wrong"], "budget_s": None,
    }  # fmt: skip
    return make_report(RunConfig(**(values | changes)), outcomes, [], {})


def test_fractions_by_hand() -> None:
    four = [
        outcome(1),
        outcome(2, rank=2, rank_positive=2, rank_ciou=4, iou_2d=0.3, area_ratio=2.0, overlapped=3),
        outcome(3, rank=1, iou_2d=0.3, area_ratio=3.0),
        outcome(4, rank=None, rank_positive=None, rank_ciou=None, iou_2d=0.0, area_ratio=None, answer=None,
                overlapped=None, overlapped_well=None, code="not_found", region_reached=False),
    ]  # fmt: skip
    absent = [outcome(5, target=None, code="not_found", rank=None, iou_2d=None), outcome(6, target=None, iou_2d=None)]
    found = {name: (f.value, f.n) for name, f in accuracy([*four, *absent]).items()}
    assert found["right"] == (pytest.approx(3 / 6), 6)
    assert found["hit@1"] == (0.5, 4) and found["hit@3"] == (0.75, 4) and found["hit@3_ciou"] == (0.5, 4)
    assert found["hit@1_iou>=0.25"] == (0.5, 4) and found["hit@1_iou>=0.5"] == (0.25, 4)
    assert found["iou_2d"] == (pytest.approx(0.4), 4)
    assert found["area_ratio_median"] == (2.0, 3) and found["overlapped_mean"] == (pytest.approx(5 / 3, abs=1e-6), 3)
    assert found["regional_success"] == (0.75, 4) and found["local_success"] == (pytest.approx(2 / 3, abs=1e-6), 3)
    assert found["not_found_precision"] == (0.5, 2) and found["not_found_recall"] == (0.5, 2)
    assert found["iou_3d"] == (None, 0)


def test_bins_are_those_of_table_16() -> None:
    far = [
        outcome(n, landmark_distance_m=d, region_reached=d < 100) for n, d in enumerate((0, 49.9, 50, 199, 200, 500))
    ]
    assert [(b.name, b.figure.n, b.figure.value) for b in regional_by_distance(far)] == [
        ("< 50 m", 2, 1.0), ("50-100 m", 1, 1.0), ("100-200 m", 1, 0.0), (">= 200 m", 2, 0.0),
    ]  # fmt: skip
    crowd = [outcome(n, distractors_50m=d, rank=1 + (d > 3)) for n, d in enumerate((0, 1, 3, 4, 9, 10, 80))]
    crowd.append(outcome(9, distractors_50m=0, region_reached=False))  # not reached: says nothing of the second stage
    assert [(b.name, b.figure.n, b.figure.value) for b in local_by_distractors(crowd)] == [
        ("0", 1, 1.0), ("1-3", 2, 1.0), ("4-9", 2, 0.0), (">= 10", 2, 0.0),
    ]  # fmt: skip


def test_effort_and_time() -> None:
    some = [outcome(1, turns=2, prompt_tokens=100), outcome(2, turns=4, code="endpoint_failed", invalid_calls=3)]
    found = effort(some)
    assert (found["turns"].value, found["invalid_calls"].value, found["failed"].value) == (3.0, 1.5, 0.5)
    assert (found["prompt_tokens"].value, found["prompt_tokens"].n) == (100.0, 1)
    assert times(some)["zoom_in"] == {"n": 2, "p50_ms": 5.0, "p95_ms": 5.0, "p99_ms": 5.0}
    assert set(by_kind([*some, outcome(3, kind="absent")])) == {"landmark", "absent"}


def test_the_interval_is_over_scenes_not_queries() -> None:
    # Scenes are all right or all wrong: 200 queries say no more than 8 scenes do.
    grouped = [outcome(n, scene=f"s{n % 8}", rank=1 + n % 2) for n in range(200)]
    spread = [outcome(n, scene=f"s{n}", rank=1 + n % 2) for n in range(200)]
    wide, narrow = figure(grouped, lambda o: o.hit()), figure(spread, lambda o: o.hit())
    assert wide.value == narrow.value == 0.5
    assert wide.low is not None and wide.high is not None and narrow.low is not None and narrow.high is not None
    # Binomial: a standard error of 0.5 / sqrt(8), and of 0.5 / sqrt(200).
    assert wide.high - wide.low == pytest.approx(3.92 * 0.5 / 8**0.5, rel=0.2)
    assert narrow.high - narrow.low == pytest.approx(3.92 * 0.5 / 200**0.5, rel=0.1)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 1)), min_size=1, max_size=30))
def test_the_quick_way_to_resample_means_is_the_plain_one(data: list[tuple[str, float]]) -> None:
    scenes, values = [s for s, _ in data], np.array([v for _, v in data])
    quick = resampled(scenes, values)
    plain = resampled(scenes, values, lambda v: float(np.mean(v)))
    assert quick.min() >= values.min() - 1e-9 and quick.max() <= values.max() + 1e-9
    assert abs(quick.mean() - plain.mean()) < 0.05
    assert (resampled(scenes, values) == quick).all()


def test_landmark_rows_are_paired_with_clean() -> None:
    clean = [outcome(n, scene=f"s{n}") for n in range(4)] + [outcome(9, landmark=None, rank=2)]
    wrong = [outcome(n, scene=f"s{n}", condition="wrong", rank=1 if n == 0 else 5) for n in range(4)]
    made = report(clean + wrong)
    assert [(r.condition, r.hit1.value, r.hit1.n) for r in made.landmarks] == [("clean", 1.0, 4), ("wrong", 0.25, 4)]
    assert made.landmarks[0].less_than_clean is None
    assert made.landmarks[1].less_than_clean is not None and made.landmarks[1].less_than_clean.value == 0.75
    assert (made.without_landmark.value, made.without_landmark.n) == (0.0, 1)
    assert made.accuracy["hit@1"].n == 5, "other conditions make no other figure"
    assert EvalReport.model_validate_json(made.model_dump_json()) == made


def test_two_runs_are_compared_query_by_query() -> None:
    a = report([outcome(n, scene=f"s{n}", rank=1 + (n > 4), iou_2d=0.5) for n in range(10)])
    b = report([outcome(n, scene=f"s{n}", rank=1 + (n > 7), iou_2d=0.6) for n in range(11)])
    found = compare(a, b)
    hit = found.measures["hit@1"]
    assert found.queries == 10 and (hit.a, hit.b) == (0.5, 0.8)
    assert hit.difference.value == pytest.approx(0.3) and hit.clear
    assert found.measures["iou_2d"].difference.low == pytest.approx(0.1)
    assert not found.measures["turns"].clear
    assert (found.both_right, found.only_a_right, found.only_b_right, found.neither_right) == (5, 0, 3, 2)
    assert any("only the 10" in remark for remark in found.remarks)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(NotComparable, match="share no query"):
        compare(report([outcome(1)]), report([outcome(2)]))
    with pytest.raises(NotComparable, match="another text"):
        compare(report([outcome(1)]), report([outcome(1, query="another")]))
