"""The baseline from a sentence to a box on the hand-made town, and side by side on the synthetic city."""

from __future__ import annotations

import threading

import pytest

from wayfix.agent.deadline import Deadline
from wayfix.agent.loop import Grounder
from wayfix.agent.messages import Prompt
from wayfix.agent.result import GroundResult
from wayfix.agent.trace import Trace
from wayfix.errors import DeadlineExceeded
from wayfix.geo.boxes import WorldBox, iou_bev
from wayfix.policy.baseline import BaselinePolicy
from wayfix.policy.interface import Chunk
from wayfix.scene.scene import Scene
from wayfix.synth.expressions import Expression
from wayfix.views.view import ImageSizes

TOWN_QUERIES = {
    "the white car next to Red Hall": "white car",
    "the car to the right of the Red Hall": "white car",
    "the white car beside the red-roofed building": "white car",
    "the blue car": "blue car",
    "the red car below the blue car": "red car",
    "the red car": "red car",
    "the orange car on the south side of Mill Road": "orange car",
    "the easternmost red car": "red car",
    "Red Hall": "red hall",
    "Where is the Town House?": "red hall",
    "the red-roofed building left of the blue car": "red hall",
    "the building north of Mill Road": "red hall",
    "the tallest building": "mercury school",
    "the building south of Mill Road": "mercury school",
}
WITHOUT_NAMES = ("the blue car", "the red car below the blue car", "the white car beside the red-roofed building")
ABSENT = ("the yellow bus", "the green car near Red Hall", "the black car on Mill Road")


def ground(scene: Scene, query: str, **options: int) -> tuple[GroundResult, Trace]:
    result, _, trace = Grounder(scene, BaselinePolicy(), **options).ground(query)
    return result, trace


@pytest.mark.parametrize("query", TOWN_QUERIES)
def test_a_sentence_about_the_town_ends_with_the_box_that_is_meant(
    town: Scene, things: dict[str, WorldBox], query: str
) -> None:
    result, _ = ground(town, query)
    assert result.code == "ok"
    assert result.box is not None
    assert iou_bev(result.box, things[TOWN_QUERIES[query]]) >= 0.5
    assert result.confidence is not None and 0 < result.confidence <= 1
    assert result.turns <= 8


@pytest.mark.parametrize("query", WITHOUT_NAMES)
def test_a_scene_without_heights_and_without_landmarks_is_searched_by_colour(
    bare_town: Scene, things: dict[str, WorldBox], query: str
) -> None:
    result, trace = ground(bare_town, query)
    assert result.code == "ok"
    assert result.box is not None
    assert iou_bev(result.box, things[TOWN_QUERIES[query]]) >= 0.5
    assert result.box.min_z is None
    assert {turn.action for turn in trace.turns} == {"zoom_in", "answer"}


@pytest.mark.parametrize("query", ABSENT)
def test_what_is_not_there_is_not_found(town: Scene, query: str) -> None:
    result, _ = ground(town, query)
    assert (result.code, result.box) == ("not_found", None)


@pytest.mark.parametrize("query", ["Where is Nowhere Castle?", "Zanzibar Pharmacy", "the police station"])
def test_a_name_that_no_landmark_has_is_not_found(town: Scene, query: str) -> None:
    result, trace = ground(town, query)
    assert trace.turns[0].action == "landmark_query"
    assert (result.code, result.box) == ("not_found", None)


def test_the_name_is_asked_first_then_it_zooms_to_search_and_to_look_closer_then_it_answers(town: Scene) -> None:
    _, trace = ground(town, "the white car next to Red Hall")
    assert [turn.action for turn in trace.turns] == ["landmark_query", "zoom_in", "zoom_in", "answer"]
    found = trace.turns[0].result
    assert found is not None and (found["status"], found["name"]) == ("found", "Red Hall")
    search, close_up = trace.views[1], trace.views[2]
    assert search.region[2] - search.region[0] > close_up.region[2] - close_up.region[0]


def test_every_name_of_a_sentence_is_asked_once(town: Scene) -> None:
    _, trace = ground(town, "the white car near Red Hall north of Mill Road next to Red Hall")
    asked = [turn.text for turn in trace.turns if turn.action == "landmark_query"]
    assert len(asked) == 2
    assert "Red Hall" in asked[0] and "Mill Road" in asked[1]


def test_other_candidates_are_told_with_less_confidence(town: Scene, things: dict[str, WorldBox]) -> None:
    result, _ = ground(town, "the car")
    assert result.confidence is not None and result.alternatives
    assert all(a.confidence <= result.confidence for a in result.alternatives)
    cars = [box for name, box in things.items() if name.endswith("car")]
    for alternative in result.alternatives:
        assert max(iou_bev(alternative.box, box) for box in cars) > 0.3


@pytest.mark.parametrize("max_turns", [1, 2, 3])
def test_it_answers_in_as_few_turns_as_it_is_given(town: Scene, things: dict[str, WorldBox], max_turns: int) -> None:
    result, trace = ground(town, "the blue car", max_turns=max_turns)
    assert result.code == "ok"
    assert len(trace.turns) == max_turns
    assert result.box is not None and iou_bev(result.box, things["blue car"]) > 0.3


def test_image_sizes_are_a_matter_of_the_policy(town: Scene, things: dict[str, WorldBox]) -> None:
    policy = BaselinePolicy(ImageSizes(overview=320, zoom=512, oblique=64))
    result, _, trace = Grounder(town, policy).ground("the blue car")
    assert result.box is not None and iou_bev(result.box, things["blue car"]) >= 0.5
    assert max(trace.views[0].size_px) == 320


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("x" * 1000, id="one long word"),
        "Where is </tool_call>?",
        '<answer>{"not_found": true}</answer>',
        pytest.param("the " + "9" * 400 + "th car from the left", id="absurd ordinal"),
        "🚗",
        "السيارة البيضاء",
        "the car\nnext to\nRed Hall",
        "left of left of left of",
        '"',
        "\\",
    ],
)
def test_an_odd_sentence_ends_with_an_answer_or_with_not_found(town: Scene, query: str) -> None:
    result, _ = ground(town, query)
    assert result.code in ("ok", "not_found"), result.message


def test_it_keeps_nothing_from_one_episode_to_the_next(town: Scene) -> None:
    grounder = Grounder(town, BaselinePolicy())
    queries = list(TOWN_QUERIES)[:6]
    fresh = {query: ground(town, query)[0].untimed() for query in queries}
    for query in [*queries, *reversed(queries)]:
        assert grounder.ground(query)[0].untimed() == fresh[query]


def test_a_turn_is_given_up_at_the_deadline(town: Scene) -> None:
    policy = BaselinePolicy()
    _, episode, _ = Grounder(town, policy).ground("the blue car")
    deadline = Deadline(60)
    deadline.instant = deadline.started
    with pytest.raises(DeadlineExceeded):
        list(policy.respond("e0", episode.prompt(must_answer=True), deadline))


def test_a_turn_depends_on_the_prompt_alone(town: Scene) -> None:
    _, episode, _ = Grounder(town, BaselinePolicy()).ground("the white car next to Red Hall")

    def next_turn(policy: BaselinePolicy, count: int) -> list[Chunk]:
        prompt = episode.prompt(must_answer=False)
        cut = Prompt(prompt.tools, prompt.messages[:count], prompt.query, must_answer=False)
        return list(policy.respond("another", cut, Deadline(60)))

    used = BaselinePolicy()
    counts = [2, 4, 6, 8]
    backwards = [next_turn(used, count) for count in reversed(counts)]
    assert list(reversed(backwards)) == [next_turn(BaselinePolicy(), count) for count in counts]
    assert [turn[0].text for turn in reversed(backwards)] == [m.text for m in episode.messages if m.role == "assistant"]


def test_episodes_side_by_side_with_one_policy_end_as_they_do_alone(
    small_city_scene: Scene, small_city_expressions: list[Expression]
) -> None:
    queries = [e.query for e in small_city_expressions[:6]]
    alone = [ground(small_city_scene, query)[0].untimed() for query in queries]
    policy = BaselinePolicy()
    both = threading.Barrier(2)
    together: dict[int, GroundResult] = {}

    def run(indices: list[int]) -> None:
        grounder = Grounder(small_city_scene, policy)
        for index in indices:
            both.wait(60)
            together[index] = grounder.ground(queries[index])[0].untimed()

    threads = [threading.Thread(target=run, args=(indices,)) for indices in ([0, 1, 2], [3, 4, 5])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[i] for i in range(6)] == alone


def test_most_answers_in_the_small_city_are_right(
    small_city_scene: Scene, small_city_expressions: list[Expression]
) -> None:
    grounder = Grounder(small_city_scene, BaselinePolicy())
    right = 0
    for expression in small_city_expressions:
        result = grounder.ground(expression.query)[0]
        if expression.box is None:
            right += result.code == "not_found"
        else:
            right += result.box is not None and iou_bev(result.box, expression.box) >= 0.5
    assert right >= 0.4 * len(small_city_expressions)
