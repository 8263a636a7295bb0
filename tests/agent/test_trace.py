"""Traces: what was saved is read back, a replay ends as the episode did, and a picture shows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from wayfix.agent.deadline import Deadline
from wayfix.agent.draw import ANSWER, CROP, GAP, HEADER, LANDMARK, PARTIAL, draw_episode
from wayfix.agent.episode import Episode
from wayfix.agent.loop import Grounder, replay
from wayfix.agent.messages import Prompt
from wayfix.agent.protocol import format_answer, format_call, format_not_found
from wayfix.agent.result import GroundResult
from wayfix.agent.trace import TRACE_VERSION, Trace
from wayfix.errors import DeadlineExceeded, UnreadableTrace
from wayfix.policy.baseline import BaselinePolicy
from wayfix.policy.interface import Alternative, Chunk
from wayfix.policy.scripted import ScriptedPolicy, Turn
from wayfix.scene.scene import Scene
from wayfix.views.view import ImageSizes

QUERY = "the white car next to Red Hall"
SIZES = ImageSizes(overview=240, zoom=192, oblique=128)
NAME = format_call("landmark_query", {"landmark_name": "Red Hall", "source_view_id": "v0"})
ZOOM = format_call("zoom_in", {"source_view_id": "v0", "crop_box": [0, 0, 500, 500]}, "Closer.")
LOOK = format_call("oblique_render", {"source_view_id": "v1", "candidate_box": [0, 0, 500, 500], "direction": "east"})
CAR = Chunk(
    format_answer("v1", (700, 425, 775, 475)),
    0.8,
    (Alternative("v0", (0, 0, 9, 9), 0.15), Alternative("v1", (5, 5, 9, 9), 0.05)),
)
Search = tuple[GroundResult, Episode, Trace]


def search(scene: Scene, turns: Sequence[Turn], max_turns: int = 8) -> Search:
    return Grounder(scene, ScriptedPolicy(turns, SIZES), max_turns=max_turns).ground(QUERY)


ENDINGS: dict[str, tuple[list[Turn], str]] = {
    "an answer": ([NAME, ZOOM, LOOK, CAR], "ok"),
    "not found": ([ZOOM, format_not_found("Nothing.")], "not_found"),
    "a partial box at the deadline": ([ZOOM, DeadlineExceeded("the budget ended")], "deadline_exceeded"),
    "no box at the deadline": ([DeadlineExceeded("the budget ended")], "deadline_exceeded"),
    "a failure": ([ZOOM, RuntimeError("boom")], "policy_failed"),
    "a script too short": ([ZOOM], "policy_failed"),
    "no turns left": ([NAME, *["hm"] * 7], "turns_exhausted"),
    "an answer after invalid turns": (
        ["", "<answer>{", format_answer("v9", (0, 0, 9, 9)), format_call("fly", {}), ZOOM, CAR],
        "ok",
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_trace_is_read_back_as_it_was_saved(town: Scene, tmp_path: Path, ending: str) -> None:
    _, _, trace = search(town, ENDINGS[ending][0])
    trace.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == trace


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_replay_of_a_saved_trace_ends_as_the_episode_did(town: Scene, tmp_path: Path, ending: str) -> None:
    turns, code = ENDINGS[ending]
    result, episode, trace = search(town, turns)
    assert result.code == code
    trace.save(tmp_path / "trace.json")
    again, replayed, copy = replay(town, Trace.load(tmp_path / "trace.json"))
    assert again.untimed() == result.untimed()
    assert replayed.messages[1].text == episode.messages[1].text
    assert [m.text for m in replayed.messages] == [m.text for m in episode.messages]
    assert copy.views == trace.views
    for view_id, view in episode.views.items():
        np.testing.assert_array_equal(replayed.views[view_id].image, view.image)


def test_a_replay_needs_no_policy_and_no_tool_the_first_run_had_not(town: Scene, bare_town: Scene) -> None:
    query = "the white car"
    result, _, trace = Grounder(town, BaselinePolicy(SIZES), tools=("zoom_in",), max_turns=4).ground(query)
    again, _, copy = replay(town, trace)
    assert again.untimed() == result.untimed()
    assert again.policy == "baseline"
    assert (copy.tools, copy.max_turns, copy.sizes) == (["zoom_in"], 4, trace.sizes)


def test_a_replay_of_a_cancelled_search_is_cancelled(town: Scene) -> None:
    deadline = Deadline(60)

    def cancel(_: Prompt) -> str:
        deadline.cancel()
        return ZOOM

    result, _, trace = Grounder(town, ScriptedPolicy([ZOOM, cancel], SIZES)).ground(QUERY, deadline=deadline)
    assert (result.code, result.partial) == ("cancelled", True)
    assert replay(town, trace)[0].untimed() == result.untimed()


def test_a_trace_tells_every_turn_and_every_view(town: Scene) -> None:
    result, episode, trace = search(town, [NAME, ZOOM, LOOK, "hm", CAR])
    assert (trace.query, trace.scene, trace.revision, trace.policy) == (QUERY, "town", 3, "scripted")
    assert (trace.code, trace.message, trace.version) == (result.code, result.message, TRACE_VERSION)
    assert [turn.action for turn in trace.turns] == ["landmark_query", "zoom_in", "oblique_render", "invalid", "answer"]
    assert [turn.view_id for turn in trace.turns] == [None, "v1", "o2", None, None]
    assert [turn.result is None for turn in trace.turns] == [False, False, False, False, True]
    assert [turn.text for turn in trace.turns] == [m.text for m in episode.messages if m.role == "assistant"]
    assert all(turn.policy_ms >= 0 and turn.tool_ms >= 0 for turn in trace.turns)
    assert [(view.id, view.direction) for view in trace.views] == [("v0", None), ("v1", None), ("o2", "east")]
    first = trace.views[0]
    extent = town.extent
    assert first.region == (extent.min_x, extent.min_y, extent.max_x, extent.max_y)
    assert first.size_px == (240, 160)


@pytest.mark.parametrize("text", ["naïve 🚗 العربية", "a\u2028b\x00c\x7f", "\\ud800", "tail \ud83d"])
def test_whatever_a_policy_writes_can_be_saved_and_replayed(town: Scene, tmp_path: Path, text: str) -> None:
    # The last one is half a character: what a tokenizer may leave at the end of a turn.
    result, _, trace = search(town, [text, CAR, format_not_found()])
    trace.save(tmp_path / "trace.json")
    assert replay(town, Trace.load(tmp_path / "trace.json"))[0].untimed() == result.untimed()


Damage = Callable[[str], bytes]
DAMAGES: dict[str, Damage] = {
    "a newer version": lambda text: text.replace('"version": 1', f'"version": {TRACE_VERSION + 1}').encode(),
    "half a file": lambda text: text[: len(text) // 2].encode(),
    "an empty file": lambda _: b"",
    "no JSON": lambda _: b"hello",
    "no UTF-8": lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
    "a list": lambda text: f"[{text}]".encode(),
    "another object": lambda _: b'{"type": "FeatureCollection", "features": []}',
    "an unknown member": lambda text: text.replace('"query"', '"queri"', 1).encode(),
    "a wrong type": lambda text: text.replace('"max_turns": 8', '"max_turns": "eight"').encode(),
    "turns that are no list": lambda text: json.dumps({**json.loads(text), "turns": {"a": 1}}).encode(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_trace_that_is_damaged_or_newer_is_unreadable_and_the_file_is_named(
    town: Scene, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "trace.json"
    search(town, [ZOOM, CAR])[2].save(path)
    whole = path.read_text(encoding="utf-8")
    changed = DAMAGES[damage](whole)
    assert changed != whole.encode()
    path.write_bytes(changed)
    with pytest.raises(UnreadableTrace, match=r"trace\.json is no trace of this version") as caught:
        Trace.load(path)
    assert caught.value.code == "unreadable_trace"


def test_a_trace_that_is_missing_or_a_folder_is_unreadable(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UnreadableTrace):
            Trace.load(path)


# ---- pictures


def count(sheet: NDArray[np.uint8], color: tuple[int, int, int]) -> int:
    return int((sheet == np.array(color, np.uint8)).all(axis=2).sum())


def draw(found: Search) -> NDArray[np.uint8]:
    sheet = draw_episode(*found)
    assert sheet.dtype == np.uint8 and sheet.ndim == 3 and sheet.shape[2] == 3
    return sheet


def test_the_picture_of_a_found_object_shows_it_the_crops_and_the_landmark_in_their_colours(town: Scene) -> None:
    sheet = draw(search(town, [NAME, ZOOM, CAR]))
    assert count(sheet, ANSWER) > 50
    assert count(sheet, CROP) > 100
    assert count(sheet, LANDMARK) > 100
    assert count(sheet, PARTIAL) == 0


def test_the_picture_of_a_partial_answer_shows_it_in_another_colour(town: Scene) -> None:
    sheet = draw(search(town, [ZOOM, DeadlineExceeded("late")]))
    assert count(sheet, PARTIAL) > 100
    assert count(sheet, ANSWER) == 0


@pytest.mark.parametrize("turns", [[format_not_found()], [ZOOM, LOOK, format_not_found()], [RuntimeError("boom")]])
def test_the_picture_of_a_search_without_a_box_shows_no_answer(town: Scene, turns: list[Turn]) -> None:
    sheet = draw(search(town, turns))
    assert (count(sheet, ANSWER), count(sheet, PARTIAL)) == (0, 0)
    assert sheet.std() > 10


def test_the_answer_is_drawn_around_the_object_in_the_view_of_the_whole_scene(town: Scene) -> None:
    sheet = draw(search(town, [format_answer("v0", (250, 250, 750, 750))]))
    rows, columns = np.nonzero((sheet == np.array(ANSWER, np.uint8)).all(axis=2))
    # The view is 460 x 307 pixels, its corner at (8, 64); lines are 2 pixels wide.
    assert (columns.min(), columns.max()) == pytest.approx((8 + 115, 8 + 345), abs=2)
    assert (rows.min(), rows.max()) == pytest.approx((64 + 77, 64 + 230), abs=2)


def test_every_view_has_a_panel_three_in_a_row(town: Scene) -> None:
    # The zooms have the scene's shape, so all panels are of one size.
    sheets = [draw(search(town, [*[ZOOM] * zooms, format_not_found()])) for zooms in (0, 1, 2, 3, 6)]
    height, width = sheets[0].shape[0] - HEADER, sheets[0].shape[1] - GAP
    panels = [((sheet.shape[1] - GAP) / width, (sheet.shape[0] - HEADER) / height) for sheet in sheets]
    assert panels == [(1, 1), (2, 1), (3, 1), (3, 2), (3, 3)]


@pytest.mark.parametrize("query", ["x" * 1000, "警察署の隣の白い車 🚗", "two\nlines\x00"])
def test_any_query_can_be_drawn(town: Scene, query: str) -> None:
    draw(Grounder(town, ScriptedPolicy([ZOOM, CAR], SIZES)).ground(query))


def test_an_episode_of_the_small_city_can_be_drawn(small_city_scene: Scene) -> None:
    draw(Grounder(small_city_scene, BaselinePolicy(SIZES)).ground("the tallest building"))
