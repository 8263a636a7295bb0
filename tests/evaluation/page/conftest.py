from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.evaluation.page.small_run import Evaluated, config, searched, town_cases

from wayfix.evaluation.page.page import write_page
from wayfix.evaluation.queries import QuerySet, read_queries
from wayfix.evaluation.report import make_report
from wayfix.geo.boxes import WorldBox
from wayfix.policy.baseline import BaselinePolicy
from wayfix.policy.scripted import ScriptedPolicy
from wayfix.scene.scene import Scene
from wayfix.synth.write import QUERIES_FILE


@pytest.fixture(scope="session")
def evaluated(town: Scene, things: dict[str, WorldBox], small_city_scene: Scene) -> Evaluated:
    """Scripted searches of every class in the town, and searches of the baseline in the small city."""
    found = []
    flat = np.array([(b.min_x, b.min_y, b.max_x, b.max_y) for b in things.values()])
    for case, turns in town_cases(things):
        found.append(searched(town, QuerySet((case,), flat), case, ScriptedPolicy(turns)))
    queries = read_queries(small_city_scene.folder / QUERIES_FILE, small_city_scene)
    for condition in ("clean", "missing"):
        for case in [c for c in queries.cases if condition == "clean" or c.landmark is not None][:6]:
            found.append(searched(small_city_scene, queries, case, BaselinePolicy(), condition))
    environment = {
        "machine": {"cpu": "A CPU", "load_average": [0.5, 0.25]},
        "versions": {"numpy": "2"},
        "commit": "c0ffee",
    }
    report = make_report(config(), [outcome for outcome, _ in found], ["a remark"], environment)
    return Evaluated(report, [kept for _, kept in found[:-1]])


@pytest.fixture(scope="session")
def page(evaluated: Evaluated, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("page") / "run.html"
    write_page(evaluated.report, iter(evaluated.searches), target)
    return target
