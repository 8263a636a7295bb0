"""The search loop with scripted policies: what each turn does to the episode, and how a search ends."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from wayfix.agent.deadline import Deadline
from wayfix.agent.episode import Episode
from wayfix.agent.loop import Grounder
from wayfix.agent.messages import Prompt
from wayfix.agent.protocol import MAX_ACTION_CHARS, MAX_TURNS, format_answer, format_call, format_not_found
from wayfix.agent.result import GroundResult
from wayfix.agent.trace import Trace, TurnRecord
from wayfix.errors import ToolError, UnknownView
from wayfix.geo.boxes import UnitBox, WorldBox
from wayfix.policy.interface import Alternative, Chunk
from wayfix.policy.scripted import ScriptedPolicy, Turn
from wayfix.scene.scene import Scene
from wayfix.views.view import ImageSizes

At = Callable[[float, float, float, float], WorldBox]
QUERY = "the white car next to Red Hall"
NONSENSE = "I wonder."


def search(scene: Scene, turns: Sequence[Turn], **options: Any) -> tuple[GroundResult, Episode, Trace]:
    return Grounder(scene, ScriptedPolicy(turns), **options).ground(QUERY)


def zoom(view: str, box: UnitBox) -> str:
    return format_call("zoom_in", {"source_view_id": view, "crop_box": list(box)})


def look(view: str, box: UnitBox, direction: str = "north") -> str:
    return format_call("oblique_render", {"source_view_id": view, "candidate_box": list(box), "direction": direction})


def name(text: str, view: str = "v0", **more: str) -> str:
    return format_call("landmark_query", {"landmark_name": text, "source_view_id": view, **more})


def flat(box: WorldBox | None) -> tuple[float, float, float, float]:
    assert box is not None
    return box.min_x, box.min_y, box.max_x, box.max_y


def errors(episode: Episode) -> list[dict[str, str]]:
    """The errors the policy was told, in order, read as it reads them."""
    told = [json.loads(m.text.split("\n")[0]) for m in episode.messages if m.role == "tool"]
    return [content["error"] for content in told if "error" in content]


# ---- answers


def test_an_answer_in_the_whole_scene_becomes_the_world_box_with_heights(town: Scene, at: At) -> None:
    result, _, trace = search(town, [format_answer("v0", (500, 600, 1000, 900))])
    assert (result.code, result.message, result.partial) == ("ok", "found", False)
    # Ground 52 m, and the school of 12 m in it; the 95th percentile of the surface is its roof.
    assert result.box == WorldBox(*flat(at(60, 8, 120, 32)), 52.0, 64.0)
    assert (result.turns, result.query, result.policy) == (1, QUERY, "scripted")
    assert [turn.action for turn in trace.turns] == ["answer"]


def test_an_answer_in_a_zoom_of_a_zoom_becomes_the_world_box_of_what_it_encloses(
    town: Scene, things: dict[str, WorldBox]
) -> None:
    # 0-60 m x 40-80 m, of it 30-60 m x 50-70 m, and there the white car at 42-46.5 m x 61-63 m.
    turns = [
        zoom("v0", (0, 0, 500, 500)),
        zoom("v1", (500, 250, 1000, 750)),
        format_answer("v2", (400, 350, 550, 450)),
    ]
    result, episode, _ = search(town, turns)
    assert list(episode.views) == ["v0", "v1", "v2"]
    assert result.box is not None
    assert flat(result.box) == pytest.approx(flat(things["white car"]), abs=1e-6)
    assert (result.box.min_z, result.box.max_z) == (50.0, 51.5)
    assert result.turns == 3


@pytest.mark.parametrize(
    ("thing", "ground", "top"),
    [("red hall", 50.0, 59.0), ("mercury school", 52.0, 64.0), ("orange car", 52.0, 53.5), ("tree", 52.0, 58.0)],
)
def test_heights_are_those_of_the_ground_and_of_what_stands_on_it(
    town: Scene, things: dict[str, WorldBox], thing: str, ground: float, top: float
) -> None:
    box = things[thing]
    _, episode, _ = search(town, [format_not_found()])
    found = episode.with_heights(box)
    assert (found.min_z, found.max_z) == (ground, top)
    assert flat(found) == flat(box)


def test_heights_are_null_where_the_scene_has_none(bare_town: Scene, at: At) -> None:
    result, _, _ = search(bare_town, [format_answer("v0", (500, 600, 1000, 900))])
    assert result.box == at(60, 8, 120, 32)
    assert (result.box.min_z, result.box.max_z) == (None, None)


def test_heights_are_null_where_the_scenes_grids_have_a_hole(town: Scene) -> None:
    result, _, _ = search(town, [format_answer("v0", (950, 950, 990, 990))])
    assert result.box is not None
    assert (result.box.min_z, result.box.max_z) == (None, None)


def test_not_found_ends_the_search_without_a_box(town: Scene) -> None:
    result, _, trace = search(town, [zoom("v0", (0, 0, 500, 500)), format_not_found()])
    assert (result.code, result.box, result.partial, result.turns) == ("not_found", None, False, 2)
    assert result.uncertainty_m is None
    assert [turn.action for turn in trace.turns] == ["zoom_in", "not_found"]


def test_confidence_and_alternatives_come_from_the_answers_last_piece(town: Scene, at: At) -> None:
    answer = Chunk(
        format_answer("v0", (0, 0, 500, 500)),
        0.75,
        (Alternative("v0", (500, 500, 1000, 1000), 0.2), Alternative("v0", (0, 500, 500, 1000), 0.05)),
    )
    result, _, trace = search(town, [Chunk(NONSENSE, 0.1), answer])
    assert result.confidence == 0.75
    assert [(a.box.min_x, a.box.min_y, a.confidence) for a in result.alternatives] == [
        (*flat(at(60, 0, 120, 40))[:2], 0.2),
        (*flat(at(0, 0, 60, 40))[:2], 0.05),
    ]
    assert [turn.confidence for turn in trace.turns] == [0.1, 0.75]


def test_the_uncertainty_is_of_the_photo_and_of_a_unit_of_the_view(town: Scene) -> None:
    coarse, _, _ = search(town, [format_answer("v0", (0, 0, 10, 10))])
    fine, _, _ = search(town, [zoom("v0", (0, 0, 100, 100)), format_answer("v1", (0, 0, 10, 10))])
    # WGS84 itself underlies the scene's CRS, so the operation adds nothing.
    assert coarse.uncertainty_m == pytest.approx(math.hypot(0.25, 120 / 1000))
    assert fine.uncertainty_m == pytest.approx(math.hypot(0.25, 12 / 1000))


@pytest.mark.parametrize("view", ["v9", "o1", "overview"])
def test_an_answer_in_a_view_that_was_never_shown_is_refused_and_the_search_goes_on(town: Scene, view: str) -> None:
    result, episode, trace = search(town, [format_answer(view, (0, 0, 10, 10)), format_answer("v0", (0, 0, 10, 10))])
    assert (result.code, result.turns) == ("ok", 2)
    assert [turn.action for turn in trace.turns] == ["invalid", "answer"]
    (error,) = errors(episode)
    assert error["code"] == "unknown_view"
    assert "one of the views v0" in error["message"] and view in error["message"]


def test_an_answer_in_an_oblique_view_is_refused_and_the_usable_views_are_named(town: Scene) -> None:
    turns = [
        zoom("v0", (0, 0, 500, 500)),
        look("v1", (300, 300, 700, 700)),
        format_answer("o2", (0, 0, 10, 10)),
        format_answer("v1", (0, 0, 10, 10)),
    ]
    result, episode, trace = search(town, turns)
    assert (result.code, result.turns) == ("ok", 4)
    assert [turn.action for turn in trace.turns] == ["zoom_in", "oblique_render", "invalid", "answer"]
    (error,) = errors(episode)
    assert error["code"] == "unknown_view"
    assert "one of the views v0, v1, not in 'o2'" in error["message"]


def test_an_alternative_in_an_oblique_view_does_not_spoil_the_answer(town: Scene) -> None:
    answer = Chunk(format_answer("v0", (0, 0, 10, 10)), 0.9, (Alternative("o1", (0, 0, 10, 10), 0.1),))
    result, _, _ = search(town, [look("v0", (300, 300, 700, 700)), answer])
    assert result.code == "ok"
    assert result.alternatives == ()


def test_an_alternative_in_an_unknown_view_is_left_out(town: Scene) -> None:
    answer = Chunk(format_answer("v0", (0, 0, 10, 10)), 0.9, (Alternative("v7", (0, 0, 10, 10), 0.1),))
    result, _, _ = search(town, [answer])
    assert (result.code, result.alternatives) == ("ok", ())


# ---- what the policy reads


def test_the_first_prompt_is_the_rules_the_whole_scene_and_the_query(town: Scene) -> None:
    prompts: list[Prompt] = []

    def keep(prompt: Prompt) -> str:
        prompts.append(prompt)
        return format_not_found()

    search(town, [keep])
    (prompt,) = prompts
    assert [m.role for m in prompt.messages] == ["system", "user"]
    assert "You have at most 8 turns" in prompt.messages[0].text
    assert [v.id for v in prompt.messages[1].views] == ["v0"]
    assert "120 m wide and 80 m high" in prompt.messages[1].text
    assert prompt.messages[1].text.endswith(f"Find: {QUERY}")
    assert prompt.query == QUERY
    assert [t["function"]["name"] for t in prompt.tools] == ["landmark_query", "zoom_in", "oblique_render"]
    assert not prompt.must_answer


def test_everything_before_the_query_is_the_same_for_every_query(town: Scene) -> None:
    grounder = Grounder(town, ScriptedPolicy([format_not_found()]))
    first, second = (grounder.ground(query)[1] for query in ("the blue car", "Where is Red Hall?"))
    assert first.messages[0] == second.messages[0]
    for a, b in zip(first.messages[1].parts[:-1], second.messages[1].parts[:-1], strict=True):
        if isinstance(a, str):
            assert a == b
        else:
            np.testing.assert_array_equal(a.image, b.image)  # type: ignore[union-attr]


def test_a_policy_reads_what_it_said_and_what_came_of_it_with_the_new_view_and_the_turns_left(town: Scene) -> None:
    prompts: list[Prompt] = []

    def keep(prompt: Prompt) -> str:
        prompts.append(prompt)
        return format_not_found()

    call = zoom("v0", (0, 0, 500, 500))
    _, episode, _ = search(town, [call, keep])
    said, told = prompts[0].messages[-2:]
    assert (said.role, said.text) == ("assistant", call)
    assert told.role == "tool"
    assert told.views == (episode.views["v1"],)
    assert json.loads(told.text.split("\n")[0])["view_id"] == "v1"
    assert told.text.endswith("Turns left: 7.")


def test_the_history_only_grows_by_two_messages_a_turn(town: Scene) -> None:
    prompts: list[Prompt] = []

    def keep_and(text: str) -> Callable[[Prompt], str]:
        def turn(prompt: Prompt) -> str:
            prompts.append(prompt)
            return text

        return turn

    search(town, [keep_and(t) for t in (zoom("v0", (0, 0, 9, 9)), NONSENSE, name("Red Hall"), format_not_found())])
    assert [len(p.messages) for p in prompts] == [2, 4, 6, 8]
    for shorter, longer in itertools.pairwise(prompts):
        assert longer.messages[: len(shorter.messages)] == shorter.messages


def test_image_sizes_are_those_the_policy_asks_for(town: Scene) -> None:
    turns = [zoom("v0", (0, 0, 500, 500)), look("v0", (0, 0, 500, 500)), format_not_found()]
    policy = ScriptedPolicy(turns, ImageSizes(overview=200, zoom=160, oblique=96))
    _, episode, _ = Grounder(town, policy).ground(QUERY)
    assert [max(view.image.shape) for view in episode.views.values()] == [200, 160, 96]


# ---- turns that cannot be carried out


@pytest.mark.parametrize(
    ("turn", "code"),
    [
        ("", "malformed_action"),
        (NONSENSE, "malformed_action"),
        (format_not_found() * 2, "malformed_action"),
        ("<answer>{</answer>", "malformed_action"),
        ("x" * (MAX_ACTION_CHARS + 1), "malformed_action"),
        (format_call("fly", {}), "unknown_tool"),
        (format_call("zoom_in", {"source_view_id": "v0"}), "invalid_arguments"),
        (format_call("zoom_in", {"source_view_id": "v0", "crop_box": [9, 0, 3, 10]}), "invalid_box"),
        (zoom("v5", (0, 0, 10, 10)), "unknown_view"),
        (format_answer("v0", (5, 5, 5, 5)), "invalid_box"),
        (format_answer("v0", (0, 0, 2000, 5)), "invalid_box"),
    ],
)
def test_a_bad_turn_costs_a_turn_and_is_told_as_json_with_code_and_message(town: Scene, turn: str, code: str) -> None:
    result, episode, trace = search(town, [turn, format_answer("v0", (0, 0, 10, 10))])
    assert (result.code, result.turns) == ("ok", 2)
    (error,) = errors(episode)
    assert set(error) == {"code", "message"}
    assert error["code"] == code
    assert len(error["message"]) > 20
    assert [t.action for t in trace.turns] == ["invalid", "answer"]
    assert trace.turns[0].result == {"error": error}
    assert episode.messages[-1].role == "assistant"
    assert "Turns left: 7." in next(m.text for m in episode.messages if m.role == "tool")


def test_a_tool_that_is_not_offered_costs_a_turn(bare_town: Scene) -> None:
    turns = [name("Red Hall"), look("v0", (0, 0, 10, 10)), format_not_found()]
    result, episode, _ = search(bare_town, turns)
    assert (result.code, result.turns) == ("not_found", 3)
    assert [e["code"] for e in errors(episode)] == ["unknown_tool", "unknown_tool"]


class EndlessText:
    """Never ends its turn; counts the pieces that were taken from it."""

    name = "endless"
    sizes = ImageSizes()

    def __init__(self) -> None:
        self.pieces = 0

    def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
        while True:
            self.pieces += 1
            yield Chunk("x" * 64)

    def forget(self, episode_id: str) -> None:
        pass


def test_endless_text_is_cut_and_counts_as_a_malformed_turn(town: Scene) -> None:
    policy = EndlessText()
    result, episode, trace = Grounder(town, policy, max_turns=3).ground(QUERY)
    assert (result.code, result.turns) == ("turns_exhausted", 3)
    assert [e["code"] for e in errors(episode)] == ["malformed_action"] * 3
    assert policy.pieces == 3 * (MAX_ACTION_CHARS // 64 + 1)
    assert all(len(turn.text) <= MAX_ACTION_CHARS + 64 for turn in trace.turns)


def test_text_that_arrives_in_pieces_is_one_turn(town: Scene) -> None:
    class Letters(EndlessText):
        def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
            for letter in format_answer("v0", (0, 0, 10, 10), "Over there."):
                yield Chunk(letter)
            yield Chunk("", 0.5)

    result, _, trace = Grounder(town, Letters()).ground(QUERY)
    assert (result.code, result.turns, result.confidence) == ("ok", 1, 0.5)
    assert trace.turns[0].text == format_answer("v0", (0, 0, 10, 10), "Over there.")


def test_a_policy_that_yields_nothing_has_taken_a_malformed_turn(town: Scene) -> None:
    class Silent(EndlessText):
        def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
            return iter(())

    result, _, trace = Grounder(town, Silent(), max_turns=2).ground(QUERY)
    assert (result.code, result.turns) == ("turns_exhausted", 2)
    assert [turn.action for turn in trace.turns] == ["invalid", "invalid"]


# ---- no turns left


def test_eight_turns_without_an_answer_end_with_the_last_region_as_a_partial_box(town: Scene, at: At) -> None:
    turns = [zoom("v0", (0, 0, 500, 500)), *[NONSENSE] * 20]
    result, _, trace = search(town, turns)
    assert MAX_TURNS == 8
    assert (result.code, result.turns, result.partial) == ("turns_exhausted", 8, True)
    assert "8 turns" in result.message
    # The roof of Red Hall covers 12 % of this ground, so the 95th percentile of the surface is on it.
    assert flat(result.box) == flat(at(0, 40, 60, 80))
    assert result.box is not None and result.box.min_z == 50.0 and result.box.max_z == 59.0
    assert result.uncertainty_m == pytest.approx(math.hypot(0.25, 60 / 2))
    assert result.confidence is None
    assert len(trace.turns) == 8


def test_eight_turns_that_reached_no_region_end_without_a_box(town: Scene) -> None:
    result, _, _ = search(town, [NONSENSE] * 20)
    assert (result.code, result.turns, result.partial, result.box) == ("turns_exhausted", 8, False, None)
    assert result.uncertainty_m is None


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (name("Town House"), (19.92, 54.96, 40.08, 70.0)),
        (look("v0", (500, 500, 600, 600)), (60, 32, 72, 40)),
        (zoom("v0", (0, 500, 100, 600)), (0, 32, 12, 40)),
        (name("Nowhere Castle"), (60, 40, 120, 80)),
        (name("Mercury"), (60, 40, 120, 80)),
        (zoom("v9", (0, 500, 100, 600)), (60, 40, 120, 80)),
        (NONSENSE, (60, 40, 120, 80)),
    ],
)
def test_the_best_region_is_the_last_that_was_looked_at(
    town: Scene, at: At, last: str, expected: tuple[float, float, float, float]
) -> None:
    result, _, _ = search(town, [zoom("v0", (500, 0, 1000, 500)), last], max_turns=2)
    assert result.partial
    assert flat(result.box) == pytest.approx(flat(at(*expected)), abs=1e-6)


def test_a_region_in_a_zoom_is_the_best_one_in_the_world_and_not_in_the_zoom(town: Scene, at: At) -> None:
    result, _, _ = search(town, [zoom("v0", (500, 0, 1000, 500)), look("v1", (0, 0, 500, 500))], max_turns=2)
    assert flat(result.box) == pytest.approx(flat(at(60, 60, 90, 80)), abs=1e-6)


@pytest.mark.parametrize("max_turns", [1, 2, 8])
def test_the_policy_must_answer_on_the_last_turn_and_is_told_so(town: Scene, max_turns: int) -> None:
    told: list[tuple[bool, str]] = []

    def turn(prompt: Prompt) -> str:
        told.append((prompt.must_answer, prompt.messages[-1].text))
        return NONSENSE

    search(town, [turn] * max_turns, max_turns=max_turns)
    assert [must for must, _ in told] == [False] * (max_turns - 1) + [True]
    assert "Answer now" in told[-1][1]
    assert not any("Answer now" in text for _, text in told[:-1])


# ---- policies that fail


def test_a_policy_that_raises_ends_its_episode_and_no_other(town: Scene) -> None:
    class Moody(EndlessText):
        name = "moody"

        def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
            if "angry" in prompt.query:
                yield Chunk("I")
                raise RuntimeError("out of memory")
            yield Chunk(format_answer("v0", (0, 0, 10, 10)))

    grounder = Grounder(town, Moody())
    alone = Grounder(town, Moody()).ground("the calm car")[0]
    failed, _, trace = grounder.ground("the angry car")
    assert (failed.code, failed.box, failed.turns) == ("policy_failed", None, 0)
    assert failed.message == "the policy moody failed: RuntimeError: out of memory"
    assert (trace.code, trace.turns) == ("policy_failed", [])
    assert grounder.ground("the calm car")[0].untimed() == alone.untimed()


def test_a_policy_that_fails_later_leaves_the_best_region(town: Scene, at: At) -> None:
    result, _, _ = search(town, [zoom("v0", (0, 0, 500, 500)), RuntimeError("gone")])
    assert (result.code, result.partial, result.turns) == ("policy_failed", True, 1)
    assert flat(result.box) == flat(at(0, 40, 60, 80))


def test_a_policy_that_raises_before_its_first_piece_has_failed(town: Scene) -> None:
    class Broken(EndlessText):
        name = "broken"

        def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
            raise RuntimeError("no connection")  # not a generator: raised by the call itself

    result, _, _ = Grounder(town, Broken()).ground(QUERY)
    assert result.code == "policy_failed"
    assert "no connection" in result.message


def test_a_policy_that_yields_something_else_than_pieces_has_failed(town: Scene) -> None:
    class Wrong(EndlessText):
        def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
            yield format_not_found()  # type: ignore[misc]

    assert Grounder(town, Wrong()).ground(QUERY)[0].code == "policy_failed"


def test_a_script_that_ends_too_early_has_failed(town: Scene) -> None:
    result, _, _ = search(town, [NONSENSE])
    assert (result.code, result.turns) == ("policy_failed", 1)
    assert "1 turns and no final answer" in result.message


@pytest.mark.parametrize("ending", [format_not_found(), NONSENSE, RuntimeError("gone")])
def test_the_policy_is_told_to_forget_every_episode_however_it_ends(town: Scene, ending: Turn) -> None:
    forgotten: list[str] = []

    class Remembering(ScriptedPolicy):
        def forget(self, episode_id: str) -> None:
            forgotten.append(episode_id)
            super().forget(episode_id)

    _, episode, _ = Grounder(town, Remembering([ending] * 8)).ground(QUERY)
    assert forgotten == [episode.id]


# ---- several episodes


def test_episodes_have_different_ids_and_views_of_their_own(town: Scene) -> None:
    grounder = Grounder(town, ScriptedPolicy([zoom("v0", (0, 0, 500, 500)), format_not_found()]))
    (_, first, _), (_, second, _) = grounder.ground(QUERY), grounder.ground(QUERY)
    assert first.id != second.id
    assert list(first.views) == list(second.views) == ["v0", "v1"]
    assert first.views["v1"] is not second.views["v1"]


def test_episodes_that_run_at_the_same_time_end_as_they_do_alone(town: Scene) -> None:
    scripts = [
        [zoom("v0", (0, 0, 500, 500)), name("Red Hall", "v1"), format_answer("v1", (100, 100, 200, 200))],
        [look("v0", (600, 600, 900, 950), "south"), NONSENSE, format_answer("v0", (600, 600, 900, 950))],
        [name("Mercury", landmark_type="school"), zoom("v0", (600, 600, 900, 950)), format_not_found()],
    ]
    alone = [search(town, script)[0].untimed() for script in scripts]
    barrier = threading.Barrier(len(scripts))
    together: dict[int, GroundResult] = {}

    def in_step(text: str) -> Callable[[Prompt], str]:
        def turn(_: Prompt) -> str:
            barrier.wait(10)
            return text

        return turn

    def run(index: int) -> None:
        together[index] = search(town, [in_step(text) for text in scripts[index]])[0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(scripts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[i].untimed() for i in range(len(scripts))] == alone


def test_a_watcher_sees_every_turn_as_it_is_recorded(town: Scene) -> None:
    seen: list[TurnRecord] = []
    turns = [zoom("v0", (0, 0, 500, 500)), NONSENSE, format_not_found()]
    _, _, trace = Grounder(town, ScriptedPolicy(turns)).ground(QUERY, watch=seen.append)
    assert seen == trace.turns
    assert [turn.action for turn in seen] == ["zoom_in", "invalid", "not_found"]


def test_an_episode_refuses_a_box_in_a_view_it_has_not(town: Scene) -> None:
    _, episode, _ = search(town, [format_not_found()])
    with pytest.raises(UnknownView) as caught:
        episode.world_box("v1", (0, 0, 1, 1))
    assert isinstance(caught.value, ToolError)


@pytest.mark.parametrize("confidence", [math.nan, math.inf])
def test_a_confidence_that_is_no_probability_does_not_reach_the_result(town: Scene, confidence: float) -> None:
    result, _, _ = search(town, [Chunk(format_answer("v0", (0, 0, 10, 10)), confidence)])
    assert result.confidence is None or 0 <= result.confidence <= 1
    json.dumps(result.feature(town), allow_nan=False)
