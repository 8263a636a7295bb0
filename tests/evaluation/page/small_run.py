"""A small evaluation that is really run: scripted searches with every kind of end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.browser import HOSTILE

from wayfix.agent.loop import Grounder
from wayfix.agent.protocol import format_answer, format_call, format_not_found
from wayfix.evaluation.outcome import Outcome, score
from wayfix.evaluation.queries import Case, QuerySet
from wayfix.evaluation.report import EvalReport, RunConfig
from wayfix.evaluation.spoilt_landmarks import SpoiltLandmarks
from wayfix.evaluation.trajectory import Trajectory, keep
from wayfix.geo.boxes import WorldBox
from wayfix.policy.interface import Policy
from wayfix.policy.scripted import Turn
from wayfix.scene.scene import Scene

CAR_IN_V0 = (350, 212, 388, 238)
"""The town's white car: 42 to 46.5 m of 120 m eastwards, 61 to 63 m of 80 m northwards."""


@dataclass
class Evaluated:
    """What a small evaluation gave."""

    report: EvalReport
    searches: list[Trajectory]

    def find(self, query_id: str, condition: str = "clean") -> tuple[Outcome, Trajectory]:
        outcome = next(o for o in self.report.outcomes if (o.id, o.condition) == (query_id, condition))
        return outcome, next(s for s in self.searches if (s.id, s.condition) == (query_id, condition))


def config(**changes: Any) -> RunConfig:
    values: dict[str, Any] = {
        "suite": "file", "suite_sha256": "ab" * 32, "scenes": 2, "queries": 14, "seed": 7, "policy": "baseline",
        "workflow": "free", "turns": 8, "tools": ["zoom_in", "landmark_query"], "conditions": ["clean", "missing"],
        "budget_s": None,
    }  # fmt: skip
    return RunConfig(**(values | changes))


def searched(
    scene: Scene, queries: QuerySet, case: Case, policy: Policy, condition: str = "clean"
) -> tuple[Outcome, Trajectory]:
    """A real search, scored and kept."""
    spoilt = None if condition == "clean" else SpoiltLandmarks(scene.landmark_index, scene.landmarks, condition, 0)
    result, episode, trace = Grounder(scene, policy, landmarks=spoilt).ground(case.query)
    outcome = score(case, queries, scene, condition, result, trace)
    return outcome, keep(case.id, condition, episode, trace)


def zoom(box: Sequence[int]) -> str:
    return format_call("zoom_in", {"source_view_id": "v0", "crop_box": list(box)})


def town_cases(things: dict[str, WorldBox]) -> list[tuple[Case, list[Turn]]]:
    """One query of each class, with what is done for it."""
    white, around = things["white car"], zoom((250, 125, 500, 375))
    red = format_answer("v0", (583, 225, 621, 250))
    name = format_call("landmark_query", {"landmark_name": "Red Hall", "source_view_id": "v0"})
    look = {"source_view_id": "v0", "candidate_box": list(CAR_IN_V0), "direction": "north"}
    # The baseline needs no thoughts; a model's may hold anything.
    hit = [
        f"{HOSTILE} שלום\n{name}",
        around,
        format_call("oblique_render", look),
        "Hm.",
        format_answer("v0", CAR_IN_V0),
    ]
    said: dict[str, tuple[WorldBox | None, list[Turn]]] = {
        "tight": (white, list(hit)),
        "loose": (white, [around, format_answer("v0", (330, 200, 400, 250))]),
        "wrong": (white, [around, red]),
        "away": (white, [red]),
        "false_none": (white, [format_not_found()]),
        "right_none": (None, [format_not_found()]),
        "missed_none": (None, [red]),
        "failed": (white, [around]),
    }
    return [
        (Case(f"town-{key}", f"the white car, {key}", box, "car", "Red Hall", 25.0, 3), turns)
        for key, (box, turns) in said.items()
    ]
