"""The environment plays the runtime's own episodes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from wayfix.agent.deadline import Deadline
from wayfix.agent.loop import Grounder
from wayfix.agent.protocol import format_answer, format_call, format_not_found
from wayfix.errors import WayfixError
from wayfix.geo.boxes import WorldBox
from wayfix.policy.interface import Chunk
from wayfix.policy.scripted import ScriptedPolicy
from wayfix.scene.scene import Scene
from wayfix.synth.city import CityConfig, build_city
from wayfix.synth.write import write_city
from wayfix.views.view import ImageSizes
from wayfix_train.environment import SearchEnvironment, Task

SIZES = ImageSizes(256, 128, 96)
ZOOM = format_call("zoom_in", {"source_view_id": "v0", "crop_box": [200, 200, 600, 600]})
LOOK = format_call(
    "oblique_render", {"source_view_id": "v1", "candidate_box": [400, 400, 500, 500], "direction": "east"}
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("city") / "scene"
    write_city(path, build_city(CityConfig(seed=5, size_m=150.0)))
    return path


def _play(folder: Path, target: WorldBox | None, *texts: str, max_turns: int = 8) -> SearchEnvironment:
    environment = SearchEnvironment(SIZES, max_turns=max_turns)
    environment.reset(Task(folder, "the red car", target))
    for text in texts:
        environment.step(text)
    return environment


def test_it_ends_where_the_service_ends(folder: Path) -> None:
    texts = [ZOOM, "nothing to see", LOOK, format_answer("v1", (400, 400, 500, 520))]
    environment = _play(folder, WorldBox(0, 0, 1, 1), *texts)
    with Scene(folder) as scene:
        policy = ScriptedPolicy([Chunk(text) for text in texts], SIZES, "scripted")
        result, episode, _ = Grounder(scene, policy).ground("the red car", deadline=Deadline(60))
    assert environment.done and result.box is not None
    answer = environment.trajectory().answer
    assert answer == result.box
    assert [m.text for m in environment.episode.messages] == [m.text for m in episode.messages]
    assert environment.metrics()["invalid"] == 1 and environment.metrics()["oblique_render"] == 1


def test_the_answer_of_the_truth_is_worth_most(folder: Path) -> None:
    environment = _play(folder, None, ZOOM)
    view = environment.episode.views["v1"]
    assert view.transform is not None
    target = view.transform.box_to_world((300, 300, 420, 400))
    won = _play(folder, target, ZOOM, format_answer("v1", (300, 300, 420, 400)))
    assert won.metrics()["iou"] == pytest.approx(1.0)
    assert won.reward().total > 1.2
    assert _play(folder, target, ZOOM, format_not_found()).reward().total < 0.1


def test_the_last_turn_is_told_and_ends_it(folder: Path) -> None:
    environment = _play(folder, None, ZOOM, max_turns=2)
    assert environment.prompt().must_answer and not environment.done
    assert environment.step(ZOOM)
    with pytest.raises(RuntimeError, match="reset"):
        environment.step(ZOOM)


def test_prompts_do_not_depend_on_the_truth(folder: Path) -> None:
    one, other = (_play(folder, target, ZOOM, LOOK) for target in (None, WorldBox(0, 0, 5, 5)))
    assert [m.text for m in one.prompt().messages] == [m.text for m in other.prompt().messages]


def test_a_missing_scene_is_named(tmp_path: Path) -> None:
    with pytest.raises(WayfixError, match="nowhere"):
        SearchEnvironment(SIZES).reset(Task(tmp_path / "nowhere", "the red car", None))
