"""The arguments of the tools: what is accepted, and which error names which broken rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wayfix.errors import InvalidArguments, InvalidBox, UnknownTool
from wayfix.tools.arguments import TOOLS, LandmarkQuery, ObliqueRender, ZoomIn, parse_call, tool_name, tool_schema

GOOD: dict[str, dict[str, Any]] = {
    "landmark_query": {"landmark_name": "Red Hall", "source_view_id": "v0", "landmark_type": "hall"},
    "zoom_in": {"source_view_id": "v0", "crop_box": [0, 0, 500, 1000], "scale": 1.5},
    "oblique_render": {"source_view_id": "v0", "candidate_box": [1, 2, 3, 4], "direction": "west", "margin": 0.0},
}
BOX_FIELDS = {"zoom_in": "crop_box", "oblique_render": "candidate_box"}


def changed(name: str, **changes: Any) -> dict[str, Any]:
    """Good arguments of a tool with some replaced."""
    return {**GOOD[name], **changes}


@pytest.mark.parametrize("name", TOOLS)
def test_good_arguments_make_the_call_they_say(name: str) -> None:
    call = parse_call(name, GOOD[name])
    assert type(call) is TOOLS[name]
    assert call.model_dump() == GOOD[name]
    assert tool_name(call) == name


def test_what_has_a_default_may_be_left_out_or_null() -> None:
    assert parse_call("landmark_query", {"landmark_name": "a", "source_view_id": "v0"}) == LandmarkQuery(
        landmark_name="a", source_view_id="v0"
    )
    for arguments in ({}, {"scale": None}):
        call = parse_call("zoom_in", {"source_view_id": "v0", "crop_box": [0, 0, 1, 1], **arguments})
        assert isinstance(call, ZoomIn) and call.scale is None
    render = parse_call("oblique_render", {"source_view_id": "v0", "candidate_box": [0, 0, 1, 1], "direction": "east"})
    assert isinstance(render, ObliqueRender) and render.margin is None


@pytest.mark.parametrize(
    ("name", "field"),
    [(name, field) for name in TOOLS for field, info in TOOLS[name].model_fields.items() if info.is_required()],
)
def test_a_missing_argument_is_named(name: str, field: str) -> None:
    arguments = {key: value for key, value in GOOD[name].items() if key != field}
    with pytest.raises(InvalidArguments, match=f"{name}: {field}: .*required") as caught:
        parse_call(name, arguments)
    assert caught.value.code == "invalid_arguments"


@pytest.mark.parametrize("name", TOOLS)
def test_an_extra_argument_is_named(name: str) -> None:
    with pytest.raises(InvalidArguments, match=f"{name}: zoom_level: .*not permitted") as caught:
        parse_call(name, changed(name, zoom_level=3))
    assert caught.value.code == "invalid_arguments"


@pytest.mark.parametrize("arguments", [None, [], "v0", 3, True, [["source_view_id", "v0"]]])
@pytest.mark.parametrize("name", TOOLS)
def test_arguments_that_are_no_object_are_refused(name: str, arguments: object) -> None:
    with pytest.raises(InvalidArguments, match=f"arguments of {name} must be a JSON object"):
        parse_call(name, arguments)


@pytest.mark.parametrize("view_id", [0, 1.0, True, None, ["v0"], {"id": "v0"}, "", "v" * 17])
@pytest.mark.parametrize("name", TOOLS)
def test_a_view_id_is_a_short_text(name: str, view_id: object) -> None:
    with pytest.raises(InvalidArguments, match=f"{name}: source_view_id: "):
        parse_call(name, changed(name, source_view_id=view_id))


@pytest.mark.parametrize("value", ["", "x" * 201, 7, True, None, ["Red Hall"], {"name": "Red Hall"}])
def test_a_landmark_name_is_a_text_of_1_to_200_characters(value: object) -> None:
    with pytest.raises(InvalidArguments, match=r"landmark_query: landmark_name: .*(string|character)"):
        parse_call("landmark_query", changed("landmark_query", landmark_name=value))


@pytest.mark.parametrize("value", [7, True, ["hall"], {}, "x" * 51])
def test_a_landmark_type_is_a_short_text(value: object) -> None:
    with pytest.raises(InvalidArguments, match=r"landmark_query: landmark_type: .*(string|character)"):
        parse_call("landmark_query", changed("landmark_query", landmark_type=value))


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (0.2499, "greater than or equal to 0.25"),
        (0, "greater than or equal to 0.25"),
        (-1.0, "greater than or equal to 0.25"),
        (2.0001, "less than or equal to 2"),
        (1e308, "less than or equal to 2"),
        (float("inf"), "less than or equal to 2"),
        (float("nan"), "equal to"),
        ("1.0", "valid number"),
        (True, "valid number"),
        ([1.0], "valid number"),
        ({}, "valid number"),
    ],
)
def test_a_scale_is_a_number_from_a_quarter_to_two(value: object, rule: str) -> None:
    with pytest.raises(InvalidArguments, match=f"zoom_in: scale: .*{rule}"):
        parse_call("zoom_in", changed("zoom_in", scale=value))


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (-0.001, "greater than or equal to 0"),
        (4.001, "less than or equal to 4"),
        (float("-inf"), "greater than or equal to 0"),
        (float("nan"), "equal to"),
        ("0.5", "valid number"),
        (False, "valid number"),
        ([0.5], "valid number"),
    ],
)
def test_a_margin_is_a_number_from_0_to_4(value: object, rule: str) -> None:
    with pytest.raises(InvalidArguments, match=f"oblique_render: margin: .*{rule}"):
        parse_call("oblique_render", changed("oblique_render", margin=value))


@pytest.mark.parametrize("scale", [0.25, 1, 1.0, 2, 2.0])
def test_the_ends_of_the_scale_are_accepted(scale: float) -> None:
    call = parse_call("zoom_in", changed("zoom_in", scale=scale))
    assert isinstance(call, ZoomIn) and call.scale == scale


@pytest.mark.parametrize("margin", [0, 0.0, 4, 4.0])
def test_the_ends_of_the_margin_are_accepted(margin: float) -> None:
    call = parse_call("oblique_render", changed("oblique_render", margin=margin))
    assert isinstance(call, ObliqueRender) and call.margin == margin


@pytest.mark.parametrize("value", ["North", "up", "north-east", "", None, 0, True, ["north"]])
def test_a_direction_is_one_of_four_words(value: object) -> None:
    with pytest.raises(InvalidArguments, match=r"oblique_render: direction: .*'north', 'south', 'east' or 'west'"):
        parse_call("oblique_render", changed("oblique_render", direction=value))


@pytest.mark.parametrize(
    ("box", "rule"),
    [
        ([500, 0, 400, 10], "x_min < x_max"),
        ([0, 500, 10, 400], "y_min < y_max"),
        ([400, 0, 400, 10], "x_min < x_max"),
        ([0, 400, 10, 400], "y_min < y_max"),
        ([-1, 0, 10, 10], "within 0 to 1000"),
        ([0, 0, 10, 1001], "within 0 to 1000"),
        (["0", "0", "10", "10"], "integers 0 to 1000"),
        ([0, 0, 10.25, 10], "integers 0 to 1000"),
        ([False, 0, 10, 10], "integers 0 to 1000"),
        ([0, 0, 10, None], "integers 0 to 1000"),
        ([[0], 0, 10, 10], "integers 0 to 1000"),
        ([0, 0, 10], "four integers"),
        ([[0, 0, 10, 10]], "four integers"),
        ("0, 0, 10, 10", "four integers"),
        ({"0": 0, "1": 0, "2": 10, "3": 10}, "four integers"),
        (None, "four integers"),
    ],
)
@pytest.mark.parametrize("name", BOX_FIELDS)
def test_a_box_that_breaks_a_rule_is_refused_by_that_rule(name: str, box: object, rule: str) -> None:
    with pytest.raises(InvalidBox, match=rule) as caught:
        parse_call(name, changed(name, **{BOX_FIELDS[name]: box}))
    assert caught.value.code == "invalid_box"


@pytest.mark.parametrize("name", ["", "ZOOM_IN", "zoom_in ", "rm", "x" * 5000])
def test_an_unknown_tool_is_refused_and_the_tools_are_named(name: str) -> None:
    with pytest.raises(UnknownTool, match="the tools are landmark_query, zoom_in, oblique_render") as caught:
        parse_call(name, {})
    assert caught.value.code == "unknown_tool"
    assert len(str(caught.value)) < 200


def test_every_problem_of_a_call_is_named_at_once() -> None:
    with pytest.raises(InvalidArguments) as caught:
        parse_call("oblique_render", {"candidate_box": [0, 0, 1, 1], "direction": "up", "margin": 9, "color": "red"})
    for field in ("source_view_id", "direction", "margin", "color"):
        assert f"{field}: " in str(caught.value)


@pytest.mark.parametrize("name", TOOLS)
def test_a_schema_tells_what_the_arguments_are_and_which_are_needed(name: str) -> None:
    schema = tool_schema(name)
    json.dumps(schema, allow_nan=False)
    function = schema["function"]
    assert schema["type"] == "function" and function["name"] == name and function["description"]
    parameters = function["parameters"]
    assert set(parameters["properties"]) == set(TOOLS[name].model_fields)
    assert parameters["required"] == [k for k, v in TOOLS[name].model_fields.items() if v.is_required()]
    for field in parameters["properties"].values():
        assert field["type"] in ("string", "array", "number")
        assert field["description"]


def test_a_schema_states_the_limits_that_are_checked() -> None:
    zoom = tool_schema("zoom_in")["function"]["parameters"]["properties"]
    assert (zoom["scale"]["minimum"], zoom["scale"]["maximum"]) == (0.25, 2.0)
    assert (zoom["crop_box"]["minItems"], zoom["crop_box"]["maxItems"]) == (4, 4)
    render = tool_schema("oblique_render")["function"]["parameters"]["properties"]
    assert render["direction"]["enum"] == ["north", "south", "east", "west"]
    assert (render["margin"]["minimum"], render["margin"]["maximum"]) == (0.0, 4.0)
