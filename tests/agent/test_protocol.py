"""The text protocol: what was written is read back, and whatever else is written gets an error to act on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wayfix.agent.protocol import (
    MAX_ACTION_CHARS,
    Answer,
    NotFound,
    format_answer,
    format_call,
    format_not_found,
    parse_action,
)
from wayfix.errors import InvalidArguments, InvalidBox, MalformedAction, ToolError, UnknownTool
from wayfix.geo.boxes import UnitBox
from wayfix.tools.arguments import LandmarkQuery, ObliqueRender, ZoomIn

unit = st.integers(0, 1000)
pair = st.tuples(unit, unit).filter(lambda p: p[0] != p[1]).map(sorted)
boxes = st.tuples(pair, pair).map(lambda p: (p[0][0], p[1][0], p[0][1], p[1][1]))
"""Every valid box."""

plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>"), max_size=60)
"""Text that holds no tag of the protocol."""

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
ARGUMENTS = ("source_view_id", "crop_box", "candidate_box", "direction", "scale", "margin", "landmark_name")
keys = st.sampled_from(("name", "arguments", "landmark_type", "view_id", "box", "not_found", *ARGUMENTS))
near_misses = st.dictionaries(
    keys, json_values | st.sampled_from(["zoom_in", "v0", "north"]) | boxes.map(list), max_size=5
)


def reads_or_refuses(text: str) -> None:
    """Either an action, or a ToolError whose message is short enough for a prompt."""
    try:
        thought, action = parse_action(text)
    except ToolError as error:
        assert 0 < len(str(error)) < 2000
    else:
        assert isinstance(thought, str)
        assert isinstance(action, (Answer, NotFound, LandmarkQuery, ZoomIn, ObliqueRender))


@given(st.text(max_size=300))
def test_any_text_is_an_action_or_a_tool_error(text: str) -> None:
    reads_or_refuses(text)


@given(st.sampled_from(["tool_call", "answer"]), st.text(max_size=100), st.text(max_size=10), st.text(max_size=10))
def test_any_text_between_the_tags_is_an_action_or_a_tool_error(tag: str, body: str, before: str, after: str) -> None:
    reads_or_refuses(f"{before}<{tag}>{body}</{tag}>{after}")


@given(st.sampled_from(["tool_call", "answer"]), json_values | near_misses)
def test_any_json_between_the_tags_is_an_action_or_a_tool_error(tag: str, value: object) -> None:
    reads_or_refuses(f"<{tag}>{json.dumps(value)}</{tag}>")


@settings(max_examples=300)
@given(st.sampled_from(["zoom_in", "landmark_query", "oblique_render"]), near_misses | json_values)
def test_any_arguments_of_a_tool_are_a_call_or_a_tool_error(name: str, arguments: object) -> None:
    reads_or_refuses(f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>")


@pytest.mark.parametrize("depth", [1, 10, 300, 600, 900, 950, 1000, 2000, 3900])
@pytest.mark.parametrize(
    "body",
    [
        '{"name": %s}',
        '{"name": "zoom_in", "arguments": %s}',
        '{"name": "zoom_in", "arguments": {"source_view_id": %s, "crop_box": [0, 0, 1, 1]}}',
        '{"name": "zoom_in", "arguments": {"source_view_id": "v0", "crop_box": %s}}',
        '{"name": "zoom_in", "arguments": {"source_view_id": "v0", "crop_box": [%s, 0, 1, 1]}}',
    ],
)
def test_deeply_nested_json_is_a_tool_error(depth: int, body: str) -> None:
    with pytest.raises(ToolError):
        parse_action(f"<tool_call>{body % ('[' * depth + ']' * depth)}</tool_call>")


@given(boxes, plain)
def test_an_answer_is_read_as_it_was_written(box: UnitBox, thought: str) -> None:
    assert parse_action(format_answer("v3", box, thought)) == (thought.strip(), Answer("v3", box))


@given(boxes, plain, st.none() | st.floats(0.25, 2.0))
def test_a_zoom_is_read_as_it_was_written(box: UnitBox, thought: str, scale: float | None) -> None:
    arguments = {"source_view_id": "v1", "crop_box": list(box), "scale": scale}
    read, call = parse_action(format_call("zoom_in", arguments, thought))
    assert read == thought.strip()
    assert isinstance(call, ZoomIn)
    assert call.model_dump() == arguments
    assert call.box == box


@given(
    boxes,
    st.sampled_from(["north", "south", "east", "west"]),
    st.none() | st.floats(0.0, 4.0),
)
def test_an_oblique_render_is_read_as_it_was_written(box: UnitBox, direction: str, margin: float | None) -> None:
    arguments: dict[str, Any] = {
        "source_view_id": "v0",
        "candidate_box": list(box),
        "direction": direction,
        "margin": margin,
    }
    _, call = parse_action(format_call("oblique_render", arguments))
    assert isinstance(call, ObliqueRender)
    assert call.model_dump() == arguments
    assert call.box == box


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200))
def test_a_landmark_name_of_any_signs_is_read_as_it_was_written(name: str) -> None:
    arguments = {"landmark_name": name, "source_view_id": "v0", "landmark_type": None}
    _, call = parse_action(format_call("landmark_query", arguments))
    assert isinstance(call, LandmarkQuery)
    assert call.model_dump() == arguments


@pytest.mark.parametrize("name", ["</tool_call>", "<answer>1</answer>", "<tool_call>{}</tool_call>"])
def test_a_landmark_name_that_looks_like_the_protocol_is_read_as_it_was_written(name: str) -> None:
    _, call = parse_action(format_call("landmark_query", {"landmark_name": name, "source_view_id": "v0"}))
    assert isinstance(call, LandmarkQuery)
    assert call.landmark_name == name


@given(plain)
def test_not_found_is_read_as_it_was_written(thought: str) -> None:
    assert parse_action(format_not_found(thought)) == (thought.strip(), NotFound())


def test_an_action_may_stand_in_the_middle_of_text_and_over_several_lines() -> None:
    text = 'The roof is red.\n\n<answer>\n{"view_id": "v1",\n "box": [1, 2, 3, 4]}\n</answer>\nDone.'
    assert parse_action(text) == ("The roof is red.", Answer("v1", (1, 2, 3, 4)))


def test_whole_numbers_written_as_floats_are_coordinates() -> None:
    assert parse_action('<answer>{"view_id": "v0", "box": [1.0, 2, 3e2, 4e2]}</answer>')[1] == Answer(
        "v0", (1, 2, 300, 400)
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "no action"),
        ("I see a car.", "no action"),
        ("<answer>{}", "no action"),
        ("<answer>{}</tool_call>", "no action"),
        ("<ANSWER>{}</ANSWER>", "no action"),
        (format_not_found() * 2, "2 actions"),
        (format_not_found() + format_call("zoom_in", {}), "2 actions"),
        ("<answer>null</answer>", "JSON object, got NoneType"),
        ("<tool_call>[1]</tool_call>", "JSON object, got list"),
        ("<tool_call>{'name': 1}</tool_call>", "not valid JSON"),
        ("<answer></answer>", "not valid JSON"),
        (f'<answer>{{"x": {"9" * 5000}}}</answer>', "not valid JSON"),
        (" " * MAX_ACTION_CHARS + format_not_found(), f"at most {MAX_ACTION_CHARS} are read"),
        ("x" * (MAX_ACTION_CHARS + 1), f"at most {MAX_ACTION_CHARS} are read"),
    ],
)
def test_a_turn_that_is_not_exactly_one_action_is_malformed_and_told_so(text: str, rule: str) -> None:
    with pytest.raises(MalformedAction, match=rule) as caught:
        parse_action(text)
    assert caught.value.code == "malformed_action"


def test_a_turn_of_the_longest_length_is_read() -> None:
    action = format_not_found()
    assert parse_action(" " * (MAX_ACTION_CHARS - len(action)) + action) == ("", NotFound())


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"not_found": False},
        {"not_found": 1},
        {"not_found": "true"},
        {"not_found": True, "box": [0, 0, 1, 1]},
        {"view_id": "v0"},
        {"box": [0, 0, 1, 1]},
        {"view_id": 0, "box": [0, 0, 1, 1]},
        {"view_id": None, "box": [0, 0, 1, 1]},
        {"view_id": "v0", "box": [0, 0, 1, 1], "confidence": 1},
    ],
)
def test_an_answer_of_another_form_is_refused_and_the_form_is_shown(content: dict[str, Any]) -> None:
    with pytest.raises(InvalidArguments, match=r'"view_id".*"box".*"not_found": true') as caught:
        parse_action(f"<answer>{json.dumps(content)}</answer>")
    assert caught.value.code == "invalid_arguments"


@pytest.mark.parametrize(
    ("box", "rule"),
    [
        ([10, 0, 5, 10], "x_min < x_max"),
        ([0, 10, 10, 5], "y_min < y_max"),
        ([5, 0, 5, 10], "x_min < x_max"),
        ([0, 5, 10, 5], "y_min < y_max"),
        ([0, 0, 1001, 10], "within 0 to 1000"),
        ([-1, 0, 10, 10], "within 0 to 1000"),
        ([0, 0, 10**400, 10], "within 0 to 1000"),
        ([0, 0, 10.5, 10], "integers 0 to 1000"),
        ([0, 0, True, 10], "integers 0 to 1000"),
        ([0, 0, "10", 10], "integers 0 to 1000"),
        ([0, 0, None, 10], "integers 0 to 1000"),
        ([0, 0, [10], 10], "integers 0 to 1000"),
        ([0, 0, float("nan"), 10], "integers 0 to 1000"),
        ([0, 0, float("inf"), 10], "integers 0 to 1000"),
        ([0, 0, 10], "four integers"),
        ([0, 0, 10, 10, 10], "four integers"),
        ([[0, 0], [10, 10]], "four integers"),
        ([], "four integers"),
        ("1234", "four integers"),
        ({"x_min": 0}, "four integers"),
        (None, "four integers"),
        (7, "four integers"),
    ],
)
def test_a_box_that_breaks_a_rule_is_refused_by_that_rule_in_answers_and_in_calls(box: object, rule: str) -> None:
    calls = {"zoom_in": "crop_box", "oblique_render": "candidate_box"}
    texts = [f"<answer>{json.dumps({'view_id': 'v0', 'box': box})}</answer>"]
    texts += [
        format_call(name, {"source_view_id": "v0", "direction": "north", field: box}) for name, field in calls.items()
    ]
    for text in texts:
        with pytest.raises(InvalidBox, match=rule) as caught:
            parse_action(text)
        assert caught.value.code == "invalid_box"


@pytest.mark.parametrize("name", ["answer", "Zoom_in", "", "zoom", 3, None, ["zoom_in"], {"zoom_in": 1}, "x" * 3000])
def test_an_unknown_tool_is_refused_and_the_tools_are_named(name: object) -> None:
    with pytest.raises(UnknownTool, match="landmark_query, zoom_in, oblique_render") as caught:
        parse_action(f"<tool_call>{json.dumps({'name': name, 'arguments': {}})}</tool_call>")
    assert caught.value.code == "unknown_tool"
    assert len(str(caught.value)) < 200
