"""The tool benchmark from end to end on a tiny scene. Nothing here looks at how long anything took."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wayfix.bench.city_scene import Recipe, bench_scene, is_complete, make_landmarks
from wayfix.bench.tools import ToolsConfig, bench_tools, make_queries
from wayfix.errors import InvalidOption, SceneExists
from wayfix.scene.scene import Scene

RECIPE = Recipe(columns=2, rows=1, city_m=100.0, gsd_m=0.5, points=20_000, names=400)
TINY = ToolsConfig(recipe=RECIPE, zoom_px=(20, 120), candidate_m=(10.0, 20.0), cold_calls=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench") / "scene"


@pytest.fixture(scope="module")
def report(data: Path) -> dict[str, Any]:
    return bench_tools(7, data, quiet=True, config=TINY)


def test_report_has_the_promised_keys(report: dict[str, Any]) -> None:
    assert set(report) == {
        *("zoom", "landmark", "oblique", "oblique_cached"),
        *("machine", "versions", "config", "commit"),
    }
    assert set(json.loads(json.dumps(report))) == set(report)
    colds = {"zoom": "cold_p50_ms", "landmark": "build_ms", "oblique": "cold_p50_ms", "oblique_cached": "disk_p50_ms"}
    for case, cold in colds.items():
        entry = report[case]
        assert set(entry) == {"n", "p50_ms", "p95_ms", "p99_ms", "max_ms", "p50_ms_rounds", cold}
        assert entry["n"] == 7 and len(entry["p50_ms_rounds"]) == 3
        assert 0 < entry["p50_ms"] <= entry["p95_ms"] <= entry["p99_ms"] <= entry["max_ms"]
        assert entry[cold] > 0
    assert report["config"]["scene"]["photo_px"] == [400, 200]
    assert report["config"]["scene"]["points_per_m2"] == 1.0


def test_scene_is_as_its_recipe_says(report: dict[str, Any], data: Path) -> None:
    with Scene(data) as scene:
        assert scene.points is not None and scene.points.count == RECIPE.points
        assert len(scene.landmarks) == len({mark.name for mark in scene.landmarks}) == RECIPE.names
        assert scene.extent == RECIPE.extent
        assert scene.problems() == []
        # No city is left empty, and no point is at the place it was made at.
        bounds = scene.points.bounds
        assert RECIPE.extent.grown(1.0).contains(bounds.min_x, bounds.min_y)
        assert RECIPE.extent.grown(1.0).contains(bounds.max_x, bounds.max_y)
        assert bounds.width > 190


def test_a_kept_scene_is_used_again_and_another_recipe_replaces_it(report: dict[str, Any], data: Path) -> None:
    before = (data / "scene.json").stat().st_mtime_ns
    with bench_scene(RECIPE, data, quiet=True) as folder:
        assert folder == data and (data / "scene.json").stat().st_mtime_ns == before
    other = replace(RECIPE, names=300)
    assert is_complete(data, RECIPE) and not is_complete(data, other)
    with bench_scene(other, data, quiet=True) as folder:
        assert is_complete(folder, other)
    (data / "vectors.gpkg").unlink()
    assert not is_complete(data, other)


def test_what_is_no_benchmark_scene_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(SceneExists), bench_scene(RECIPE, tmp_path, quiet=True):
        pass
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_a_temporary_scene_is_removed() -> None:
    with bench_scene(RECIPE, None, quiet=True) as folder:
        assert is_complete(folder, RECIPE)
    assert not folder.parent.exists()


def test_at_least_one_call(data: Path) -> None:
    with pytest.raises(InvalidOption):
        bench_tools(0, data, quiet=True, config=TINY)


def test_queries_are_of_all_kinds_and_the_same_for_a_seed() -> None:
    names = [mark.name for mark in make_landmarks(RECIPE)]
    queries = make_queries(np.random.default_rng(5), names, 60)
    assert queries == make_queries(np.random.default_rng(5), names, 60)
    known, folded = set(names), {name.casefold() for name in names}
    assert all(query in known for query in queries[0::6])
    assert all(query.casefold() in folded and query not in known for query in queries[1::6])
    assert all(query.isascii() or "ł" in query.casefold() or "ø" in query.casefold() for query in queries[2::6])
    assert not any(query.casefold() in folded for query in queries[5::6])


def test_some_names_have_accents_and_some_aliases() -> None:
    marks = make_landmarks(RECIPE)
    assert 0.2 < sum(not mark.name.isascii() for mark in marks) / len(marks) < 0.5
    assert 0.05 < sum(bool(mark.aliases) for mark in marks) / len(marks) < 0.2
