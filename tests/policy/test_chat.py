"""Prompts as chat messages and replies as text: the same search, told in another service's words."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.chat_server import call_pieces, delta, usage

from wayfix.agent.episode import Episode
from wayfix.agent.loop import Grounder
from wayfix.agent.messages import Prompt
from wayfix.agent.protocol import MAX_ACTION_CHARS, format_answer, format_call, format_not_found, parse_action
from wayfix.errors import InvalidArguments, MalformedAction, ToolError, UnknownTool
from wayfix.policy.chat import EMPTY_TURN_TEXT, NotAReply, Reply, ServerError, ToolMode, chat_request, image_link
from wayfix.policy.scripted import ScriptedPolicy
from wayfix.policy.sse import MAX_EVENT_BYTES, EventReader, ReplyReader
from wayfix.scene.scene import Scene
from wayfix.views.view import ImageSizes, View

SIZES = ImageSizes(overview=96, zoom=64, oblique=64)
MODES: tuple[ToolMode, ...] = ("native", "text")
ZOOM_ARGUMENTS = {"source_view_id": "v0", "crop_box": [0, 0, 500, 500]}
ZOOM = format_call("zoom_in", ZOOM_ARGUMENTS, "Closer.")
NAME = format_call("landmark_query", {"landmark_name": "Red Hall", "source_view_id": "v0"})
LOOK = format_call("oblique_render", {"source_view_id": "v1", "candidate_box": [0, 0, 500, 500], "direction": "east"})
FLY = format_call("fly", {"to": "the moon"})
WRONG = format_answer("v9", (0, 0, 5, 5))


def short_link(view: View) -> str:
    return f"data:image/jpeg;base64,{view.id}"


def episode_of(scene: Scene, turns: Sequence[str], query: str = "the red car") -> Episode:
    script = [*turns, format_not_found()]
    return Grounder(scene, ScriptedPolicy(script, SIZES), max_turns=len(script)).ground(query)[1]


def prompt_after(scene: Scene, turns: Sequence[str], query: str = "the red car", must_answer: bool = False) -> Prompt:
    """The prompt of the turn that follows these."""
    episode = episode_of(scene, turns, query)
    del episode.messages[-1]  # the final answer
    return episode.prompt(must_answer)


def request_after(scene: Scene, turns: Sequence[str], mode: ToolMode, must_answer: bool = False) -> dict[str, Any]:
    return chat_request(prompt_after(scene, turns, must_answer=must_answer), mode, short_link)


def roles(request: dict[str, Any]) -> list[str]:
    return [message["role"] for message in request["messages"]]


def image(view_id: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{view_id}"}}


# ---- the request


@pytest.mark.parametrize("mode", MODES)
def test_the_first_request_is_the_rules_and_the_whole_scene_with_the_query(town: Scene, mode: ToolMode) -> None:
    request = request_after(town, [], mode)
    system, user = request["messages"]
    assert system["content"].startswith("You find one object")
    assert '<answer>{"view_id": "v1", "box": [x_min, y_min, x_max, y_max]}</answer>' in system["content"]
    assert user["content"][0] == image("v0")
    assert user["content"][1] == {
        "type": "text",
        "text": "View v0: the whole scene, 120 m wide and 80 m high.\nFind: the red car",
    }


def test_native_tools_go_in_the_request_and_plain_ones_in_the_rules(town: Scene) -> None:
    native, text = (request_after(town, [], mode) for mode in MODES)
    assert [tool["function"]["name"] for tool in native["tools"]] == ["landmark_query", "zoom_in", "oblique_render"]
    assert "<tools>" not in native["messages"][0]["content"]
    assert "tools" not in text
    listed = text["messages"][0]["content"].split("<tools>\n")[1].split("\n</tools>")[0].split("\n")
    assert [json.loads(schema) for schema in listed] == native["tools"]


def test_a_native_call_and_its_answer_go_together_and_the_view_follows_as_the_users(town: Scene) -> None:
    request = request_after(town, [ZOOM], "native")
    assert roles(request) == ["system", "user", "assistant", "tool", "user"]
    said, told, shown = request["messages"][2:]
    (call,) = said["tool_calls"]
    assert said["content"] == "Closer."
    assert call["type"] == "function" and call["function"]["name"] == "zoom_in"
    assert json.loads(call["function"]["arguments"]) == ZOOM_ARGUMENTS
    assert told["tool_call_id"] == call["id"] and call["id"].isalnum() and len(call["id"]) == 9
    assert json.loads(told["content"].split("\n")[0])["view_id"] == "v1"
    assert told["content"].endswith("left: 1.")
    assert shown["content"] == [image("v1"), {"type": "text", "text": "View v1."}]


def test_in_text_mode_a_turn_stays_as_it_was_written_and_the_user_answers_with_image_and_text(town: Scene) -> None:
    request = request_after(town, [ZOOM], "text")
    assert roles(request) == ["system", "user", "assistant", "user"]
    said, told = request["messages"][2:]
    assert said["content"] == ZOOM
    assert told["content"][0] == image("v1")
    assert json.loads(told["content"][1]["text"].split("\n")[0])["view_id"] == "v1"


def test_a_call_without_thought_has_no_content_and_without_view_no_message_after_its_answer(town: Scene) -> None:
    request = request_after(town, [NAME, NAME], "native")
    assert roles(request) == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert request["messages"][2]["content"] is None
    first, second = (request["messages"][i]["tool_calls"][0]["id"] for i in (2, 4))
    assert first != second


@pytest.mark.parametrize(
    "turn", ["I wonder.", NAME * 2, WRONG, '<tool_call>{"name": "zoom_in"', "<tool_call>[]</tool_call>"]
)
def test_a_malformed_turn_stays_text_and_its_error_is_the_users(town: Scene, turn: str) -> None:
    request = request_after(town, [turn], "native")
    assert roles(request) == ["system", "user", "assistant", "user"]
    assert request["messages"][2] == {"role": "assistant", "content": turn}
    assert "error" in json.loads(request["messages"][3]["content"].split("\n")[0])


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "zoom in!", "arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 5, "arguments": {}}',
        '{"name": "zoom_in", "arguments": [1]}',
        '{"name": "zoom_in", "arguments": {"scale": NaN}}',
        '{"name": "zoom_in"}',
        "7",
    ],
)
def test_a_call_that_a_server_would_not_take_back_stays_text(town: Scene, call: str) -> None:
    request = request_after(town, [f"<tool_call>{call}</tool_call>"], "native")
    assert "tool_calls" not in request["messages"][2]
    assert roles(request)[-1] == "user"


def test_a_call_of_an_unknown_tool_is_answered_as_a_call(town: Scene) -> None:
    request = request_after(town, [FLY], "native")
    assert roles(request)[-2:] == ["assistant", "tool"]
    assert json.loads(request["messages"][-1]["content"].split("\n")[0])["error"]["code"] == "unknown_tool"


def test_an_empty_turn_is_not_sent_as_an_empty_message(town: Scene) -> None:
    for mode in MODES:
        assert request_after(town, [""], mode)["messages"][2]["content"] == EMPTY_TURN_TEXT


@pytest.mark.parametrize("mode", MODES)
def test_when_an_answer_is_due_the_user_says_so_and_native_calls_are_switched_off(town: Scene, mode: ToolMode) -> None:
    for turns in ([], [ZOOM], [NAME], ["hm"]):
        request = request_after(town, turns, mode, must_answer=True)
        last = request["messages"][-1]["content"]
        assert (last if isinstance(last, str) else last[-1]["text"]).endswith("no further tool call is possible.")
        assert request.get("tool_choice") == ("none" if mode == "native" else None)
        assert "tool_choice" not in request_after(town, turns, mode)


def test_a_scene_without_tools_has_no_list_of_them(town: Scene) -> None:
    prompt = Prompt((), prompt_after(town, []).messages, "the red car", must_answer=True)
    for mode in MODES:
        request = chat_request(prompt, mode, short_link)
        assert set(request) == {"messages"}
        assert "<tools>" not in request["messages"][0]["content"]


@pytest.mark.parametrize("mode", MODES)
def test_everything_before_the_query_is_the_same_to_the_byte_for_all_queries(town: Scene, mode: ToolMode) -> None:
    def link(view: View) -> str:
        return image_link(view.image, "jpeg", 90)

    requests = [
        json.dumps(chat_request(prompt_after(town, turns, query), mode, link)["messages"])
        for turns, query in ((["hm", ""], "the blue car"), ([ZOOM, NAME], "Where is Red Hall?"), ([NAME, LOOK], "🚗"))
    ]
    before = {request.partition("Find: ")[0] for request in requests}
    assert len(before) == 1
    assert len(before.pop()) > 2000


def test_half_characters_never_reach_a_server(town: Scene) -> None:
    call = format_call("landmark_query", {"landmark_name": "x\ud83d", "source_view_id": "v0"})
    for mode in MODES:
        sent = json.dumps(request_after(town, ["tail \ud83d", call], mode), ensure_ascii=False)
        sent.encode("utf-8")
        for message in json.loads(sent)["messages"]:
            for made in message.get("tool_calls", ()):
                json.dumps(json.loads(made["function"]["arguments"]), ensure_ascii=False).encode("utf-8")


TURNS = st.one_of(
    st.sampled_from([ZOOM, NAME, LOOK, FLY, WRONG, "", "hm", ZOOM + NAME, "<tool_call>{</tool_call>"]),
    st.text(max_size=40),
    st.builds(
        format_call,
        st.text(max_size=10) | st.sampled_from(["zoom_in", "landmark_query"]),
        st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.floats() | st.text(max_size=8), max_size=3),
        st.text(max_size=10),
    ),
)


@settings(max_examples=60)
@given(turns=st.lists(TURNS, max_size=6), must_answer=st.booleans(), mode=st.sampled_from(MODES))
def test_any_history_is_a_valid_conversation(town: Scene, turns: list[str], must_answer: bool, mode: ToolMode) -> None:
    request = request_after(town, turns, mode, must_answer)
    json.dumps(request, allow_nan=False, ensure_ascii=False).encode("utf-8")
    messages = request["messages"]
    order = roles(request)
    assert order[:2] == ["system", "user"] and order[-1] in ("user", "tool")
    waiting: list[str] = []
    for before, message in zip([None, *messages], messages, strict=False):
        role, content = message["role"], message["content"]
        assert not waiting or role == "tool", "a call is answered by the next message"
        if before is not None and role in ("user", "assistant", "system"):
            assert before["role"] != role
        if role == "tool":
            assert isinstance(content, str) and message["tool_call_id"] == waiting.pop()
        elif role == "assistant":
            waiting = [call["id"] for call in message.get("tool_calls", ())]
            assert content or waiting
            assert content is None or isinstance(content, str)
            for call in message.get("tool_calls", ()):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
        elif isinstance(content, list):
            assert role == "user" and {part["type"] for part in content} <= {"text", "image_url"}
        else:
            assert content
    shown = [part for m in messages if isinstance(m["content"], list) for part in m["content"] if "image_url" in part]
    views = prompt_after(town, turns).messages
    assert [part["image_url"]["url"] for part in shown] == [short_link(v) for m in views for v in m.views]


# ---- images


def pixels(link: str) -> np.ndarray:
    head, data = link.split(",", 1)
    assert head in ("data:image/jpeg;base64", "data:image/png;base64")
    decoded = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)


def test_a_png_is_the_view_to_the_pixel_and_a_jpeg_nearly(town: Scene) -> None:
    view = episode_of(town, []).views["v0"]
    np.testing.assert_array_equal(pixels(image_link(view.image, "png", 90)), view.image)
    fine, rough = image_link(view.image, "jpeg", 95), image_link(view.image, "jpeg", 20)
    assert np.abs(pixels(fine).astype(int) - view.image).mean() < 6
    assert len(rough) < len(fine)
    assert fine == image_link(view.image, "jpeg", 95)


# ---- the reply


def reply_of(*events: Any) -> Reply:
    reply = Reply()
    for event in events:
        reply.add(event)
    return reply


def whole(message: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def native(name: Any, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def test_content_in_pieces_is_joined_and_the_tokens_are_told() -> None:
    reply = reply_of(delta("<ans"), delta("wer>"), delta(finish="stop"), usage(50, 3))
    assert (reply.text, reply.finished, reply.prompt_tokens, reply.completion_tokens) == ("<answer>", True, 50, 3)


def test_a_native_call_becomes_the_text_that_the_loop_writes_itself() -> None:
    pieces = call_pieces("zoom_in", json.dumps(ZOOM_ARGUMENTS))
    assert reply_of(delta("Closer."), *pieces).text == ZOOM
    assert reply_of(whole({"content": None, "tool_calls": [native("zoom_in", json.dumps(ZOOM_ARGUMENTS))]})).text == (
        format_call("zoom_in", ZOOM_ARGUMENTS)
    )


def test_arguments_that_are_an_object_and_not_text_are_taken() -> None:
    made = native("zoom_in", ZOOM_ARGUMENTS)
    assert reply_of(whole({"tool_calls": [made]})).text == format_call("zoom_in", ZOOM_ARGUMENTS)


def test_a_name_in_pieces_or_repeated_is_one_name() -> None:
    events = [[{"index": 0, "function": {"name": part}}] for part in ("zoom", "_in", "zoom_in")]
    text = reply_of(*(delta(tool_calls=event) for event in events)).text
    assert text == format_call("zoom_in", {})


def test_calls_without_index_are_told_apart_by_their_names() -> None:
    pieces = [native("zoom_in", '{"a": '), native(None, "1}"), native("fly", "{}")]
    assert reply_of(*(delta(tool_calls=[piece]) for piece in pieces)).text == "\n".join(
        [format_call("zoom_in", {"a": 1}), format_call("fly", {})]
    )


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("zoom_in", '{"source_view_id": "v0", "crop', MalformedAction),
        ("zoom_in", "[" * 5000, MalformedAction),
        ("zoom_in", "</tool_call><answer>{}</answer>", MalformedAction),
        ("zoom_in", "[1, 2]", InvalidArguments),
        ("zoom_in", '"v0"', InvalidArguments),
        ("zoom_in", "", InvalidArguments),
        ("zoom_in", None, InvalidArguments),
        ("zoom_in", 7, InvalidArguments),
        ("zoom_in", '{"source_view_id": 5, "crop_box": [0, 0, 9, 9]}', InvalidArguments),
        ("landmark_query", '{"landmark_name": "\\ud83d", "source_view_id": "v0"}', InvalidArguments),
        ("fly", "{}", UnknownTool),
        ("", "{}", UnknownTool),
        (None, "{}", UnknownTool),
        (5, "{}", UnknownTool),
        ({"a": 1}, "{}", UnknownTool),
        ("</tool_call><tool_call>", "{}", UnknownTool),
    ],
)
def test_a_bad_call_stays_bad_and_the_loop_tells_what_is_wrong(
    name: Any, arguments: Any, error: type[ToolError]
) -> None:
    with pytest.raises(error):
        parse_action(reply_of(whole({"tool_calls": [native(name, arguments)]})).text)


def test_several_calls_are_one_malformed_turn() -> None:
    calls = [native("zoom_in", json.dumps(ZOOM_ARGUMENTS)), native("fly", "{}")]
    with pytest.raises(MalformedAction, match="2 actions"):
        parse_action(reply_of(whole({"tool_calls": calls})).text)


def test_reasoning_is_no_part_of_the_turn() -> None:
    answer = format_not_found()
    assert reply_of(delta(reasoning_content="<answer>"), delta(reasoning="hm"), delta(answer)).text == answer
    assert reply_of(whole({"content": None, "reasoning_content": "hm"})).text == ""
    assert reply_of(whole({"content": None, "reasoning_content": "hm"})).finished


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"choices": []},
        {"choices": None},
        {"choices": [{}]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": None, "tool_calls": None}}]},
        {"choices": [{"delta": {"content": 5, "tool_calls": "x"}}]},
        {"choices": [{"delta": {"tool_calls": [None, 7]}}]},
        {"usage": "none"},
    ],
)
def test_an_event_that_says_nothing_changes_nothing(event: Any) -> None:
    reply = reply_of(event)
    assert (reply.text, reply.size, reply.finished) == ("", 0, False)


def test_content_in_parts_is_joined_and_only_the_first_choice_counts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    body = {"choices": [{"message": {"content": parts}}, {"message": {"content": "c"}}]}
    assert reply_of(body).text == "ab"


@pytest.mark.parametrize(
    "event", [[], "text", None, 5, {"choices": {"a": 1}}, {"choices": [5]}, {"choices": [{"delta": "x"}]}]
)
def test_json_that_is_no_reply_is_refused(event: Any) -> None:
    with pytest.raises(NotAReply):
        reply_of(event)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        ({"message": "too long", "code": 400}, 400, "too long"),
        ({"message": "lost", "code": "x"}, 500, "lost"),
        ("out of memory", 500, "out of memory"),
        ({"code": 99999}, 500, '{"code": 99999}'),
    ],
)
def test_an_error_in_place_of_a_reply_is_told(error: Any, status: int, said: str) -> None:
    with pytest.raises(ServerError, match=said) as caught:
        reply_of({"error": error})
    assert caught.value.status == status


def test_half_characters_of_two_pieces_are_joined_and_single_ones_replaced() -> None:
    assert reply_of(delta("\ud83d"), delta("\ude97 ")).text == "🚗"
    reply_of(delta("a\ud83d")).text.encode("utf-8")


def test_the_size_grows_with_everything_that_is_kept() -> None:
    assert reply_of(delta("x" * 10)).size == 10
    assert reply_of(delta(tool_calls=[native("a" * 10, "b" * 10, index=0)])).size >= 20
    many = [delta(tool_calls=[{"index": i}]) for i in range(200)]
    assert reply_of(*many).size > MAX_ACTION_CHARS


# ---- bytes


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=5), st.integers(1, 40))
def test_events_are_the_same_however_the_bytes_are_cut(texts: list[str], size: int) -> None:
    contents = [json.dumps(text, ensure_ascii=False) for text in texts]
    stream = "".join(f": hello\r\nevent: x\r\ndata: {content}\r\n\r\n" for content in contents).encode()
    reader, got = EventReader(), []
    for start in range(0, len(stream), size):
        got += reader.feed(stream[start : start + size])
    assert got + reader.end() == contents


def test_data_lines_of_one_event_are_joined_and_a_missing_last_blank_line_is_forgiven() -> None:
    reader = EventReader()
    assert reader.feed(b'data: {"a":\ndata:1}\n\n\n\ndata: last') == ['{"a":\n1}']
    assert reader.end() == ["last"]
    assert reader.end() == []


@pytest.mark.parametrize("data", [b"data: ", b"data: x\n", b": x", b"\xff"])
def test_an_event_without_end_is_refused_before_it_fills_the_memory(data: bytes) -> None:
    reader = EventReader()
    with pytest.raises(NotAReply, match="longer than"):
        for _ in range(2 * MAX_EVENT_BYTES):
            reader.feed(data * 1000)


def read(*pieces: bytes, max_chars: int = 1000) -> Reply:
    reply = Reply()
    reader = ReplyReader(reply, max_chars)
    if not any(reader.feed(piece) for piece in pieces):
        reader.end()
    return reply


def test_a_whole_body_and_a_stream_are_told_apart_by_how_they_begin() -> None:
    body = json.dumps(whole({"content": "hi"})).encode()
    assert read(b" \n", body[:9], body[9:]).text == "hi"
    assert read(b"\n: ping\n\n", b"data: " + body + b"\n\n").text == "hi"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"{}",
        b'{"choices": []}',
        b"<html>busy</html>",
        b"data: {\n\n",
        b"data: nonsense\n\n",
        b"data: [1]\n\n",
        b'data: {"choices": [{"delta": {"content": "I"}}]}\n\n',
        b"\xff\xfe\x00",
        b"{" + b" " * (2 * MAX_EVENT_BYTES),
    ],
)
def test_a_body_that_is_no_whole_reply_is_refused(body: bytes) -> None:
    with pytest.raises(NotAReply):
        read(body)


def test_text_is_read_up_to_its_bound_and_no_further() -> None:
    endless = b"data: " + json.dumps(delta("x" * 100)).encode() + b"\n\n"
    reply = Reply()
    reader = ReplyReader(reply, 1000)
    taken = next(count for count in range(1, 1000) if reader.feed(endless))
    assert (taken, reply.size, reply.finished) == (11, 1100, True)
