"""One query scored: every number of a small case is known beforehand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from wayfix.agent.loop import Grounder
from wayfix.agent.protocol import format_answer, format_call, format_not_found
from wayfix.evaluation.outcome import Outcome, score
from wayfix.evaluation.queries import Case, QuerySet
from wayfix.geo.boxes import WorldBox
from wayfix.policy.interface import Chunk
from wayfix.policy.scripted import ScriptedPolicy, Turn
from wayfix.scene.scene import Scene
from wayfix.views.view import ImageSizes

SIZES = ImageSizes(overview=240, zoom=192, oblique=128)


def searched(town: Scene, case: Case, turns: list[Turn], candidates: list[WorldBox]) -> Outcome:
    result, _, trace = Grounder(town, ScriptedPolicy(turns, SIZES)).ground(case.query)
    flat = np.array([(b.min_x, b.min_y, b.max_x, b.max_y) for b in candidates], float).reshape(-1, 4)
    return score(case, QuerySet((case,), flat), town, "clean", result, trace)


@pytest.fixture
def cars(things: dict[str, WorldBox]) -> list[WorldBox]:
    return [things[name] for name in ("white car", "red car", "blue car", "red hall")]


def test_a_loose_hit(town: Scene, at, cars: list[WorldBox]) -> None:
    # The overview is 120 x 80 m: units of 0.12 and 0.08 m. The answer is 9 m x 4 m around the red car of 4.5 x 2.
    case = Case("q", "the red car", cars[1], "attribute", "Red Hall", 30.0, 1)
    turns = [
        format_call("landmark_query", {"landmark_name": "Red Hall", "source_view_id": "v0"}),
        "nonsense",
        format_call("zoom_in", {"source_view_id": "v0", "crop_box": [500, 100, 700, 400]}),
        Chunk(format_answer("v0", (550, 200, 625, 250)), 0.7, (), 900, 30),
    ]
    outcome = searched(town, case, turns, cars)
    # x 66 to 75, y 60 to 64: all of the red car, and half of the blue one's height (63 to 65).
    assert outcome.answer is not None and outcome.answer[:4] == pytest.approx(
        tuple(getattr(at(66, 60, 75, 64), n) for n in ("min_x", "min_y", "max_x", "max_y"))
    )
    assert outcome.iou_2d == pytest.approx(9 / 36)
    assert (outcome.rank, outcome.rank_positive, outcome.rank_ciou) == (1, 1, 1)
    assert (outcome.overlapped, outcome.overlapped_well) == (2, 1)
    assert outcome.area_ratio == pytest.approx(36 / 9)
    assert outcome.region_reached and outcome.hit() and outcome.right
    assert (outcome.turns, outcome.invalid_calls) == (4, 1)
    assert outcome.tool_calls == {"landmark_query": 1, "zoom_in": 1}
    assert (outcome.prompt_tokens, outcome.completion_tokens, outcome.confidence) == (900, 30, 0.7)
    assert outcome.point_f1 is not None and 0 < outcome.point_f1 < 1
    assert Outcome.model_validate_json(outcome.model_dump_json()) == outcome


def test_a_box_on_nothing_ranks_last(town: Scene, cars: list[WorldBox]) -> None:
    outcome = searched(town, Case("q", "the red car", cars[1]), [format_answer("v0", (0, 900, 50, 950))], cars)
    assert (outcome.rank, outcome.rank_positive, outcome.iou_2d, outcome.overlapped) == (4, None, 0.0, 0)
    assert not outcome.hit(3) and not outcome.right and outcome.region_reached is False


def test_no_answer_to_what_is_there(town: Scene, cars: list[WorldBox]) -> None:
    outcome = searched(town, Case("q", "the red car", cars[1]), [format_not_found()], cars)
    assert (outcome.rank, outcome.iou_2d, outcome.overlapped, outcome.point_f1) == (None, 0.0, None, 0.0)
    assert not outcome.right


def test_what_is_absent_is_right_only_as_not_found(town: Scene, cars: list[WorldBox]) -> None:
    case = Case("q", "the pink car", None)
    missed = searched(town, case, [format_answer("v0", (0, 0, 50, 50))], cars)
    assert searched(town, case, [format_not_found()], cars).right and not missed.right
    assert missed.iou_2d is None and missed.rank is None


def test_the_best_region_of_a_search_that_ended_counts_as_its_answer(town: Scene, cars: list[WorldBox]) -> None:
    zoom = format_call("zoom_in", {"source_view_id": "v0", "crop_box": [560, 210, 660, 260]})
    outcome = searched(town, Case("q", "the red car", cars[1]), [zoom, RuntimeError("broke")], cars)
    assert outcome.code == "policy_failed" and outcome.partial and outcome.hit()


def test_without_candidates_there_is_no_rank(town: Scene, cars: list[WorldBox]) -> None:
    outcome = searched(town, Case("q", "the red car", cars[1]), [format_answer("v0", (550, 200, 625, 250))], [])
    assert (outcome.candidates, outcome.rank, outcome.overlapped) == (0, None, None)
    assert outcome.iou_2d == pytest.approx(0.25)


def test_heights_make_a_third_dimension(town: Scene, cars: list[WorldBox]) -> None:
    hall = dataclasses.replace(cars[3], min_z=50.0, max_z=59.0)
    outcome = searched(town, Case("q", "the hall", hall), [format_answer("v0", (0, 0, 1000, 1000))], cars)
    assert outcome.iou_2d == pytest.approx(300 / 9600)
    # Ground at 50 m, the surface's 95th percentile at the roof, 59 m: heights agree, so volumes overlap as areas do.
    assert outcome.iou_3d == pytest.approx(300 / 9600)
