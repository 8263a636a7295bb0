"""Suites run for real: the oracle above, chance below, landmarks spoilt, a stopped run going on, traces replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import shapely

from wayfix.agent.loop import replay
from wayfix.agent.trace import Trace
from wayfix.errors import InvalidOption, SuiteChanged, UnreadableQueries
from wayfix.evaluation.outcome import Outcome
from wayfix.evaluation.queries import QuerySet, read_queries
from wayfix.evaluation.run import EvalOptions, Evaluation
from wayfix.evaluation.spoilt_landmarks import NOISE_M, WRONG_M, SpoiltLandmarks
from wayfix.evaluation.suite import SuiteScene, from_file, load, synth_v1
from wayfix.policy.baseline import BaselinePolicy
from wayfix.policy.interface import Policy
from wayfix.policy.oracle import OraclePolicy
from wayfix.policy.random import RandomPolicy
from wayfix.scene.scene import Scene


def oracle(queries: QuerySet) -> Policy:
    return OraclePolicy({case.query: case.box for case in queries.cases})


def untimed(outcomes: list[Outcome]) -> list[dict]:
    return [o.model_dump(exclude={"policy_ms", "tool_ms", "total_ms"}) for o in outcomes]


def run(scene: Scene, make, name: str, journal: Path | None = None, **options) -> list[Outcome]:
    suite = from_file(scene.folder, None, options.pop("count", None))
    report, _ = Evaluation(suite, make, EvalOptions(policy=name, quiet=True, **options), journal).run()
    return report.outcomes


@pytest.mark.parametrize("workflow", ["free", "fixed"])
def test_the_oracle_hits_everything_through_the_tools(small_city_scene: Scene, workflow: str) -> None:
    outcomes = run(small_city_scene, oracle, "oracle", workflow=workflow)
    found = [o for o in outcomes if o.target is not None]
    assert len(outcomes) == 20 and all(o.right for o in outcomes)
    assert sum(o.iou_2d or 0 for o in found) / len(found) > 0.95
    if workflow == "fixed":
        assert all(set(o.tool_calls) == {"landmark_query", "zoom_in", "oblique_render"} for o in outcomes)


def test_chance_is_far_below_and_the_same_for_the_same_seed(small_city_scene: Scene) -> None:
    first = run(small_city_scene, lambda _: RandomPolicy(1), "random")
    assert untimed(first) == untimed(run(small_city_scene, lambda _: RandomPolicy(1), "random", workers=2))
    assert untimed(first) != untimed(run(small_city_scene, lambda _: RandomPolicy(2), "random"))
    assert sum(o.hit() for o in first) <= 4


def test_a_fixed_workflow_takes_the_steps_in_order(small_city_scene: Scene) -> None:
    outcomes = run(small_city_scene, lambda _: BaselinePolicy(), "baseline", workflow="fixed", count=5)
    assert all(o.turns == 4 and o.invalid_calls == 0 for o in outcomes)


def test_a_stopped_run_goes_on_and_ends_the_same(small_city_scene: Scene, tmp_path: Path) -> None:
    path = tmp_path / "run.json.partial"
    whole = run(small_city_scene, oracle, "oracle", path, count=6)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:4]) + "\n" + lines[4][:40])  # stopped in the middle of a line
    assert untimed(run(small_city_scene, oracle, "oracle", path, count=6)) == untimed(whole)
    assert len(path.read_text().splitlines()) == len(lines)
    with pytest.raises(InvalidOption, match="another run"):
        run(small_city_scene, oracle, "oracle", path, count=6, turns=5)


def test_traces_of_a_run_replay_to_the_same_result(small_city_scene: Scene, tmp_path: Path) -> None:
    run(small_city_scene, lambda _: BaselinePolicy(), "baseline", traces=tmp_path, count=3)
    files = sorted(tmp_path.glob("*.clean.json"))
    assert len(files) == 3
    for file in files:
        recorded = Trace.load(file)
        _, _, again = replay(small_city_scene, recorded)
        assert (again.code, again.box, again.views) == (recorded.code, recorded.box, recorded.views)


def test_landmarks_are_withheld_moved_or_exchanged(small_city_scene: Scene) -> None:
    scene = small_city_scene
    marks, index = scene.landmarks, scene.landmark_index
    for mark in marks:
        clean = index.query(mark.name).matches[0].landmark
        assert SpoiltLandmarks(index, marks, "missing", 0).query(mark.name).status == "not_found"
        noisy = SpoiltLandmarks(index, marks, "noisy", 0).query(mark.name).matches[0].landmark
        moved = shapely.distance(shapely.centroid(noisy.geometry), shapely.centroid(clean.geometry))
        assert moved == pytest.approx(NOISE_M) and noisy.name == clean.name
        for match in SpoiltLandmarks(index, marks, "wrong", 0).query(mark.name).matches:
            assert shapely.distance(match.landmark.geometry, clean.geometry) >= WRONG_M
            assert match.landmark in marks
    again = [SpoiltLandmarks(index, marks, "wrong", 0).query(m.name) for m in marks]
    assert again == [SpoiltLandmarks(index, marks, "wrong", 0).query(m.name) for m in marks]


def test_the_first_frozen_city_is_what_it_was(tmp_path: Path) -> None:
    item = synth_v1(40).scenes[0]
    scene, queries, sha = load(item, tmp_path)
    scene.close()
    assert sha == item.sha256 and len(queries.cases) == 1 and len(queries.candidates) > 80
    changed = SuiteScene(item.id, 1, item.make, "0" * 64)
    with pytest.raises(SuiteChanged, match="not the city that was frozen"):
        load(changed, tmp_path)


def test_queries_are_spread_over_all_frozen_cities() -> None:
    assert [s.count for s in synth_v1(500).scenes] == [13] * 20 + [12] * 20
    assert sum(s.count or 0 for s in synth_v1(None).scenes) == 2000
    with pytest.raises(InvalidOption, match="1 to 2000"):
        synth_v1(2001)


BAD = {
    "nothing": "[]",
    "no json": "{",
    "no query": '[{"id": "a"}]',
    "five numbers": '[{"id": "a", "query": "x", "box": [1, 2, 3, 4, 5]}]',
    "inside out": '[{"id": "a", "query": "x", "box": [5, 5, 0, 1, 1, 0]}]',
    "the same id": '[{"id": "a", "query": "x"}, {"id": "a", "query": "y"}]',
    "no polygon": '[{"id": "a", "query": "x", "box": {"type": "Polygon"}}]',
    "a point": '[{"id": "a", "query": "x", "box": {"type": "Point", "coordinates": [3, 51]}}]',
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_of_queries_is_refused(town: Scene, tmp_path: Path, what: str) -> None:
    path = tmp_path / "queries.json"
    path.write_text(BAD[what])
    with pytest.raises(UnreadableQueries):
        read_queries(path, town)


def test_wgs84_polygons_and_own_boxes_say_the_same(town: Scene, at, tmp_path: Path) -> None:
    box = at(20, 10, 60, 50)
    polygon = town.frame.wgs84_geometry(box)
    own = [box.min_x, box.min_y, None, box.max_x, box.max_y, None]
    path = tmp_path / "queries.json"
    path.write_text(json.dumps([{"id": "a", "query": "x", "box": polygon}, {"id": "b", "query": "y", "box": own}]))
    a, b = (case.box for case in read_queries(path, town).cases)
    assert a is not None and b == box
    # Grid and true north differ by a fraction of a degree: the bounds of the corners are the box itself.
    assert (a.min_x, a.min_y, a.max_x, a.max_y) == pytest.approx((b.min_x, b.min_y, b.max_x, b.max_y), abs=1e-3)
