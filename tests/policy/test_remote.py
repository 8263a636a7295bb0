"""The remote policy against a real server on this machine that answers well, badly, late, or not at all."""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from tests.policy.chat_server import (
    Behaviour,
    ChatServer,
    Exchange,
    body_of,
    call_pieces,
    called,
    closed_port,
    deaf_port,
    delta,
    opened,
    status,
    streamed,
    usage,
    whole,
)

from wayfix.agent.deadline import Deadline
from wayfix.agent.episode import Episode
from wayfix.agent.loop import Grounder, replay
from wayfix.agent.messages import Message, Prompt
from wayfix.agent.protocol import MAX_ACTION_CHARS, format_answer, format_call, format_not_found
from wayfix.agent.result import GroundResult
from wayfix.agent.trace import Trace
from wayfix.errors import (
    Cancelled,
    DeadlineExceeded,
    EndpointBusy,
    EndpointFailed,
    EndpointRefused,
    EndpointUnreachable,
    InvalidOption,
    PolicyFailed,
    WayfixError,
)
from wayfix.policy import endpoint
from wayfix.policy.remote import RemoteConfig, RemotePolicy
from wayfix.policy.secret import Secret
from wayfix.scene.scene import Scene
from wayfix.views.view import ImageSizes

QUERY = "the white car next to Red Hall"
SIZES = ImageSizes(overview=96, zoom=64, oblique=64)
PROMPT = Prompt((), (Message("system", ("Rules.",)), Message("user", ("Find: it",))), "it", must_answer=False)
ZOOM = {"source_view_id": "v0", "crop_box": [0, 0, 500, 500]}
ANSWER = format_answer("v1", (700, 425, 775, 475))
ANSWER_V0 = format_answer("v0", (350, 210, 390, 240), "There.")
KEY = "sk-test-1234567890/abcdef+XYZ"
TEXT_EVENT = f"data: {json.dumps(delta('x' * 50))}\n\n".encode()
SLACK_S = 0.5
"""What a busy machine may be late by."""

Search = tuple[GroundResult, Episode, Trace]


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds; what they are in use is tested by itself."""
    monkeypatch.setattr(endpoint, "FIRST_BACKOFF_S", 0.02)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("WAYFIX_API_KEY", KEY)
    return KEY


def config(server: ChatServer | str, **options: Any) -> RemoteConfig:
    base = server if isinstance(server, str) else server.base
    return RemoteConfig(**{"endpoint": base, "model": "tiny-vl", "sizes": SIZES, **options})


def search(scene: Scene, server: ChatServer | str, budget_s: float = 30.0, **options: Any) -> Search:
    with RemotePolicy(config(server, **options)) as policy:
        return Grounder(scene, policy).ground(QUERY, budget_s)


def turn(server: ChatServer | str, budget_s: float = 30.0, **options: Any) -> str:
    """The text of one turn."""
    with RemotePolicy(config(server, **options)) as policy:
        (chunk,) = policy.respond("e", PROMPT, Deadline(budget_s))
        return chunk.text


def failure(server: ChatServer | str, kind: type[WayfixError], budget_s: float = 30.0, **options: Any) -> str:
    """What the error says that ends one turn."""
    with pytest.raises(WayfixError) as caught:
        turn(server, budget_s, **options)
    assert type(caught.value) is kind
    return str(caught.value)


def stall(exchange: Exchange) -> None:
    exchange.stall()


def hang_up(exchange: Exchange) -> None:
    exchange.hang_up()


def told_errors(episode: Episode) -> list[str]:
    told = [json.loads(m.text.split("\n")[0]) for m in episode.messages if m.role == "tool"]
    return [content["error"]["code"] for content in told if "error" in content]


# ---- whole episodes


def test_an_episode_with_native_calls_finds_the_car(town: Scene) -> None:
    script = [called("landmark_query", {"landmark_name": "Red Hall", "source_view_id": "v0"}), called("zoom_in", ZOOM)]
    with ChatServer([*script, streamed(ANSWER)]) as server:
        result, episode, trace = search(town, server)
    assert (result.code, result.policy, result.turns) == ("ok", "remote:tiny-vl", 3)
    assert [t.action for t in trace.turns] == ["landmark_query", "zoom_in", "answer"]
    assert [(t.prompt_tokens, t.completion_tokens) for t in trace.turns] == [(120, 7)] * 3
    assert trace.turns[1].text == format_call("zoom_in", ZOOM)
    assert list(episode.views) == ["v0", "v1"]
    request = server.requests[-1]
    assert request.path == "/v1/chat/completions"
    assert request.headers["Authorization"] == f"Bearer {KEY}"
    assert [m["role"] for m in request.messages] == ["system", "user", *["assistant", "tool"] * 2, "user"]
    assert {
        name: request.body[name] for name in ("model", "temperature", "max_tokens", "stream", "stream_options")
    } == {
        "model": "tiny-vl",
        "temperature": 0.0,
        "max_tokens": 512,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_an_episode_in_plain_text_needs_no_tools_of_the_server(town: Scene) -> None:
    with ChatServer([streamed(format_call("zoom_in", ZOOM, "Closer.")), whole({"content": ANSWER})]) as server:
        result, _, trace = search(town, server, tools="text", seed=7, temperature=None, image_format="png")
    assert (result.code, result.turns) == ("ok", 2)
    assert [t.prompt_tokens for t in trace.turns] == [120, 120]
    body = server.requests[-1].body
    assert body["seed"] == 7
    assert not {"tools", "tool_choice", "temperature"} & set(body)
    assert [m["role"] for m in body["messages"]] == ["system", "user", "assistant", "user"]
    assert body["messages"][1]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")


def test_the_history_of_a_request_begins_with_the_one_before(town: Scene) -> None:
    with ChatServer([called("zoom_in", ZOOM), streamed("hm"), streamed(ANSWER)]) as server:
        search(town, server)
    histories = [json.dumps(request.messages)[:-1] for request in server.requests]
    for shorter, longer in itertools.pairwise(histories):
        assert longer.startswith(shorter)


def test_a_connection_serves_all_turns_of_an_episode(town: Scene) -> None:
    with ChatServer([called("zoom_in", ZOOM), called("zoom_in", ZOOM), streamed(ANSWER)]) as server:
        search(town, server)
    assert len(server.requests) == 3
    assert len(server.connections) == 1


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (called("zoom_in", '{"source_view_id": "v0", "crop'), "malformed_action"),
        (called("zoom_in", {"source_view_id": "v0", "crop_box": "all"}), "invalid_box"),
        (called("zoom_in", {"source_view_id": 5, "crop_box": [0, 0, 9, 9]}), "invalid_arguments"),
        (called("zoom_in", "[]"), "invalid_arguments"),
        (called("zoom_in", {**ZOOM, "source_view_id": "v7"}), "unknown_view"),
        (called("fly", {}), "unknown_tool"),
        (called(None, {}), "unknown_tool"),
        (
            streamed(*call_pieces("zoom_in", json.dumps(ZOOM)), *call_pieces("zoom_in", json.dumps(ZOOM), index=1)),
            "malformed_action",
        ),
        (streamed("I wonder."), "malformed_action"),
        (streamed(ANSWER_V0 + ANSWER_V0), "malformed_action"),
        (streamed(delta(reasoning_content="hm")), "malformed_action"),
        (streamed(delta(None, "length")), "malformed_action"),
        (streamed("half \ud83d"), "malformed_action"),
        (whole({"content": None}), "malformed_action"),
        (
            opened(lambda exchange: exchange.forever(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')),
            "malformed_action",
        ),
    ],
)
def test_a_bad_turn_costs_a_turn_and_the_search_goes_on(town: Scene, behaviour: Behaviour, error: str) -> None:
    with ChatServer([behaviour, streamed(ANSWER_V0)]) as server:
        result, episode, trace = search(town, server)
    assert (result.code, result.turns) == ("ok", 2)
    assert told_errors(episode) == [error]
    assert len(trace.turns[0].text) <= MAX_ACTION_CHARS + 1
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


def test_when_turns_run_out_the_last_request_asks_for_an_answer(town: Scene) -> None:
    with ChatServer([streamed("hm")] * 8) as server:
        result, _, _ = search(town, server)
    assert result.code == "turns_exhausted"
    assert [r.body.get("tool_choice") for r in server.requests] == [None] * 7 + ["none"]


BROKEN: dict[str, tuple[list[Behaviour], str]] = {
    "no key": ([status(401, {"error": {"message": "bad key"}})], "endpoint_refused"),
    "no model": ([status(404, {"error": {"message": "no such model"}})], "endpoint_refused"),
    "busy": ([status(429, {}, Retry_After="0")] * 3, "endpoint_busy"),
    "broken": ([status(500, b"oops")] * 3, "endpoint_failed"),
    "hangs up": ([hang_up] * 3, "endpoint_failed"),
    "hangs up midway": ([opened(hang_up)] * 3, "endpoint_failed"),
    "garbage": ([body_of(b"data: garbage\n\n")] * 3, "endpoint_failed"),
}


@pytest.mark.parametrize("way", BROKEN)
def test_an_endpoint_that_fails_ends_the_search_with_its_code_and_the_best_region(
    town: Scene, tmp_path: Path, way: str
) -> None:
    behaviours, code = BROKEN[way]
    with ChatServer([called("zoom_in", ZOOM), *behaviours]) as server:
        result, _, trace = search(town, server)
    assert (result.code, result.partial, result.turns) == (code, True, 1)
    trace.save(tmp_path / "trace.json")
    again, _, copy = replay(town, Trace.load(tmp_path / "trace.json"))
    assert again.untimed() == result.untimed()
    assert [t.prompt_tokens for t in copy.turns] == [120]


def test_a_trace_is_replayed_to_the_same_result_without_the_server(town: Scene, tmp_path: Path) -> None:
    script = [called("zoom_in", ZOOM), called("fly", {}), streamed("naïve 🚗"), streamed(ANSWER)]
    with ChatServer(script) as server:
        result, episode, trace = search(town, server)
    trace.save(tmp_path / "trace.json")
    again, replayed, _ = replay(town, Trace.load(tmp_path / "trace.json"))
    assert again.untimed() == result.untimed()
    assert [m.text for m in replayed.messages] == [m.text for m in episode.messages]


# ---- the deadline


def byte_by_byte(exchange: Exchange) -> None:
    exchange.head()
    exchange.forever(b"d", every_s=0.05)


def events_without_text(exchange: Exchange) -> None:
    exchange.head()
    exchange.forever(b": still thinking\n\n", every_s=0.01)


def endless_reasoning(exchange: Exchange) -> None:
    exchange.head()
    exchange.forever(f"data: {json.dumps(delta(reasoning_content='hm'))}\n\n".encode())


LATE: dict[str, Behaviour] = {
    "stalls before the headers": stall,
    "stalls in the headers": lambda exchange: (exchange.raw(b"HTTP/1.1 200 OK\r\nContent-"), exchange.stall())[1],
    "stalls after the headers": lambda exchange: (exchange.head(), exchange.stall())[1],
    "stalls midway": opened(stall),
    "a byte at a time": byte_by_byte,
    "events without text": events_without_text,
    "endless reasoning": endless_reasoning,
    "stalls after a status": lambda exchange: (exchange.head(503), exchange.stall())[1],
}


@pytest.mark.parametrize("way", LATE)
def test_the_deadline_is_kept_and_the_server_sees_the_client_leave(town: Scene, way: str) -> None:
    with ChatServer([called("zoom_in", ZOOM), LATE[way]]) as server, RemotePolicy(config(server)) as policy:
        grounder = Grounder(town, policy)
        result, _, trace = grounder.ground(QUERY, 0.6)
        assert server.left.wait(5)
    assert (result.code, result.partial, result.turns) == ("deadline_exceeded", True, 1)
    assert 590 <= result.time_ms < (0.6 + SLACK_S) * 1000
    assert replay(town, trace)[0].untimed().code == "deadline_exceeded"


def test_a_connection_that_is_never_made_ends_by_the_deadline() -> None:
    with deaf_port() as port:
        started = time.monotonic()
        failure(f"http://127.0.0.1:{port}/v1", DeadlineExceeded, budget_s=0.3)
        assert 0.29 <= time.monotonic() - started < 0.3 + SLACK_S


def test_a_connection_that_is_not_made_in_time_is_unreachable() -> None:
    with deaf_port() as port:
        told = failure(f"http://127.0.0.1:{port}/v1", EndpointUnreachable, connect_timeout_s=0.1, retries=1)
    assert "tries: 2" in told


@pytest.mark.parametrize("behaviour", [stall, opened(stall), byte_by_byte])
def test_a_cancelled_turn_ends_at_once_and_the_server_sees_it(behaviour: Behaviour) -> None:
    with ChatServer([behaviour]) as server, RemotePolicy(config(server)) as policy:
        deadline = Deadline(30)
        threading.Timer(0.2, deadline.cancel).start()
        with pytest.raises(Cancelled):
            next(policy.respond("e", PROMPT, deadline))
        assert 0.19 <= deadline.elapsed() < 0.2 + SLACK_S
        assert server.left.wait(5)


def test_an_exception_in_the_waiting_thread_ends_the_request() -> None:
    class Interrupted(Deadline):
        def check(self) -> None:
            if self.elapsed() > 0.2:
                raise KeyboardInterrupt

    with ChatServer([stall]) as server, RemotePolicy(config(server)) as policy:
        with pytest.raises(KeyboardInterrupt):
            next(policy.respond("e", PROMPT, Interrupted(30)))
        assert server.left.wait(5)


def test_a_turn_that_is_closed_before_it_began_asks_nothing() -> None:
    with ChatServer([]) as server, RemotePolicy(config(server)) as policy:
        policy.respond("e", PROMPT, Deadline(30)).close()  # type: ignore[attr-defined]
        with pytest.raises(Cancelled):
            deadline = Deadline(30)
            deadline.cancel()
            next(policy.respond("e", PROMPT, deadline))
    assert server.requests == []


# ---- retries


AGAIN: dict[str, list[Behaviour]] = {
    "hangs up": [hang_up, hang_up],
    "hangs up midway": [opened(hang_up), opened(hang_up)],
    "ends midway": [opened(lambda exchange: exchange.end())],
    "time-outs": [status(408), stall],
    "stalls midway": [opened(stall), opened(stall)],
    "busy": [status(429, {}), status(429, {}, Retry_After="0")],
    "server errors": [status(500, b""), status(502, b"<html>")],
    "overloaded": [status(503, {"detail": "loading"}), status(504)],
    "one invalid body": [status(200, b"{")],
    "one garbled stream": [body_of(b"data: {nonsense\n\n")],
    "one empty reply": [whole({"content": "x"}, choices=[])],
    "one empty stream": [body_of(b"")],
    "no content": [lambda exchange: exchange.raw(b"HTTP/1.1 204 No Content\r\n\r\n")],
    "an error in the stream": [opened(lambda e: (e.event({"error": {"message": "lost", "code": 500}}), e.end())[1])],
    "a huge header": [lambda exchange: exchange.head(X_Padding="x" * 200_000)],
    "no HTTP": [lambda exchange: (exchange.raw(b"\x16\x03\x01 hello"), exchange.hang_up())[1]],
}


@pytest.mark.parametrize("way", AGAIN)
def test_what_may_pass_is_tried_again_and_leaves_nothing_in_the_text(way: str) -> None:
    with ChatServer([*AGAIN[way], streamed(ANSWER)]) as server:
        assert turn(server, turn_timeout_s=0.5) == ANSWER
    assert len(server.requests) == len(AGAIN[way]) + 1
    assert all(request.body == server.requests[0].body for request in server.requests)


def test_a_server_that_is_just_starting_is_found() -> None:
    server = ChatServer([streamed(ANSWER)])
    starting = threading.Timer(0.3, server.start)
    starting.start()
    try:
        assert turn(server, retries=20) == ANSWER
    finally:
        starting.join()
        server.stop()


FINAL: dict[str, tuple[Behaviour, type[WayfixError], tuple[str, ...]]] = {
    "400": (
        status(400, {"error": {"message": "image too large"}}),
        EndpointRefused,
        ("image too large", "tools='text'"),
    ),
    "401": (status(401, {"error": "no"}), EndpointRefused, ("(401): no", "WAYFIX_API_KEY (it is set)")),
    "403": (status(403, b""), EndpointRefused, ("it gave no reason", "WAYFIX_API_KEY")),
    "404": (status(404, {"message": "?"}), EndpointRefused, ("'tiny-vl'", "/v1")),
    "422": (status(422, {"detail": [{"loc": ["tools"]}]}), EndpointRefused, ("loc", "images and tools")),
    "redirect": (status(307, b"", Location="http://example.com/"), EndpointRefused, ("another address",)),
    "501": (status(501, b"\x1b[31mnot \x00here" + b"\xff"), EndpointFailed, ("(501)", "[31mnot here")),
    "a 400 in the stream": (
        opened(lambda e: (e.event({"error": {"message": "too long", "code": 400}}), e.end())[1]),
        EndpointRefused,
        ("(400): too long",),
    ),
    "a refusal that never ends": (
        lambda exchange: (exchange.head(401), exchange.forever(b"no " * 1000))[1],
        EndpointRefused,
        ("no no no", "…"),
    ),
}


@pytest.mark.parametrize("way", FINAL)
def test_what_will_not_pass_is_told_at_once(way: str) -> None:
    behaviour, kind, parts = FINAL[way]
    with ChatServer([behaviour, streamed(ANSWER)]) as server:
        told = failure(server, kind)
    assert len(server.requests) == 1
    assert all(part in told for part in parts), told
    assert told.startswith(server.base) and len(told) < 800 and told.isprintable()


def test_a_refusal_whose_reason_stalls_is_still_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "ERROR_BODY_S", 0.2)
    with ChatServer([lambda exchange: (exchange.head(401), exchange.stall())[1]]) as server:
        assert "it gave no reason" in failure(server, EndpointRefused)


@pytest.mark.parametrize("body", [b"{", b"<html>", b"data: {\n\n", b'{"choices": 5}', b"data: " + b"x" * (1 << 21)])
def test_a_body_that_is_no_reply_twice_is_not_tried_a_third_time(body: bytes) -> None:
    with ChatServer([body_of(body)] * 3) as server:
        told = failure(server, EndpointFailed)
    assert len(server.requests) == 2
    assert "no reply of the chat protocol" in told and "tries: 2" in told


def test_tries_end_and_the_last_failure_is_told() -> None:
    with ChatServer([status(500, b"a"), status(503, b"b"), status(429, {"message": "slow down"})]) as server:
        assert "(429): slow down; wait, or send less (tries: 3)" in failure(server, EndpointBusy)
    with ChatServer([status(500, b"a"), streamed(ANSWER)]) as server:
        assert "(500): a" in failure(server, EndpointFailed, retries=0)
        assert len(server.requests) == 1


def test_where_nothing_listens_the_endpoint_is_unreachable() -> None:
    with closed_port() as port:
        told = failure(f"http://127.0.0.1:{port}/v1", EndpointUnreachable)
    assert "check that the server runs" in told and "tries: 3" in told


def test_a_pause_that_the_server_asks_for_is_kept() -> None:
    with ChatServer([status(429, {}, Retry_After="1"), streamed(ANSWER)]) as server:
        started = time.monotonic()
        assert turn(server) == ANSWER
        assert time.monotonic() - started >= 1.0


@pytest.mark.parametrize("after", ["60", "9999999999", "a date"])
def test_a_pause_beyond_the_deadline_fails_at_once(after: str) -> None:
    after = formatdate(time.time() + 3600, usegmt=True) if after == "a date" else after
    with ChatServer([status(429, {}, Retry_After=after), streamed(ANSWER)]) as server:
        started = time.monotonic()
        told = failure(server, EndpointBusy, budget_s=10)
        assert time.monotonic() - started < 2
    assert "after the deadline" in told
    assert len(server.requests) == 1


@pytest.mark.parametrize("after", ["soon", "-5", "", "nan", "²", formatdate(0, usegmt=True)])
def test_a_pause_that_is_none_is_not_waited_for(after: str) -> None:
    with ChatServer([status(503, {}, Retry_After=after), streamed(ANSWER)]) as server:
        assert turn(server, budget_s=10) == ANSWER


def test_pauses_double_vary_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for tries, longest in ((1, 0.5), (2, 1.0), (3, 2.0), (5, 8.0), (60, 8.0)):
        pauses = [endpoint._pause_s(None, tries) for _ in range(50)]
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


def test_a_stream_that_breaks_after_its_last_word_is_whole() -> None:
    def cut(exchange: Exchange) -> None:
        exchange.event(delta(finish="stop"))
        exchange.hang_up()

    with ChatServer([opened(cut), opened(lambda e: (e.event(delta(finish="stop")), e.stall())[1])]) as server:
        assert turn(server) == "I begin to"
        assert turn(server, turn_timeout_s=0.3) == "I begin to"
    assert len(server.requests) == 2


def test_a_server_that_keeps_the_stream_open_after_its_end_costs_little_time() -> None:
    def open_end(exchange: Exchange) -> None:
        exchange.event("[DONE]")
        exchange.stall()

    with ChatServer([opened(open_end)]) as server:
        started = time.monotonic()
        assert turn(server) == "I begin to"
        assert time.monotonic() - started < 2
        assert server.left.wait(5)


# ---- the key


def test_the_key_is_nowhere_even_where_the_server_echoes_it(
    town: Scene, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    thought = f"My key is {KEY}, and {KEY[:12]} begins it."
    echo = {"error": {"message": f"wrong key {KEY}!", "header": f"Bearer {KEY}"}}
    behaviours = [
        called("landmark_query", {"landmark_name": KEY, "source_view_id": "v0"}),
        called("zoom_in", f'{{"source_view_id": "{KEY}", "crop'),
        streamed(thought + format_call("zoom_in", ZOOM)),
        status(500, echo, X_Key=f"Bearer {KEY}"),
        status(401, echo, Set_Cookie=f"key={KEY}"),
    ]
    with ChatServer(behaviours) as server, RemotePolicy(config(server)) as policy:
        result, episode, trace = Grounder(town, policy).ground(QUERY, 30)
        shown = [repr(policy), repr(policy.config), repr(vars(policy)), policy.config.model_dump_json()]
    assert len(server.requests) == 5
    assert (result.code, result.turns) == ("endpoint_refused", 3)
    assert "wrong key ***!" in result.message
    logs = [caplog.text, *(repr(vars(record)) for record in caplog.records), *capfd.readouterr()]
    assert any("receive_response_headers" in log and "***" in log for log in logs)
    told = [trace.model_dump_json(), json.dumps(result.feature(town)), repr(result), repr(episode.messages)]
    for text in [*shown, *logs, *told]:
        assert KEY not in text
        assert KEY[:20] not in text and KEY.replace("/", "\\/") not in text


@pytest.mark.parametrize(
    "behaviour",
    [
        status(400, f'{{"error": "{KEY}"}}'.replace("/", "\\/").encode()),
        status(400, f"<p>{KEY}</p>".encode()),
        status(400, (" " * 60_000 + KEY * 300).encode()),
        status(400, ("x" * 290 + KEY).encode()),
        status(400, ("x" * (endpoint.ERROR_BODY_BYTES - 10) + KEY * 900).encode()),
        status(307, b"", Location=f"http://{KEY}\x01/"),
        lambda exchange: (exchange.raw(f"HTTP/1.1 200 OK\r\n{KEY}\r\n\r\n".encode()), exchange.hang_up())[1],
        lambda exchange: (exchange.raw(f"{KEY}\r\n\r\n".encode()), exchange.hang_up())[1],
        body_of(f"data: {KEY}\n\n".encode()),
        opened(lambda e: (e.event({"error": {"message": KEY, "code": 400}}), e.end())[1]),
    ],
)
def test_no_error_shows_the_key(behaviour: Behaviour) -> None:
    with ChatServer([behaviour] * 3) as server, pytest.raises(PolicyFailed) as caught:
        turn(server)
    error: BaseException | None = caught.value
    while error is not None:  # what a traceback would print
        assert KEY[:12] not in str(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize("length", [MAX_ACTION_CHARS - 40, MAX_ACTION_CHARS - 10, MAX_ACTION_CHARS + 40])
def test_the_key_does_not_show_where_a_text_is_cut(length: int) -> None:
    text = ("x" * length) + KEY * 20
    with ChatServer([streamed(text)] * 2) as server:
        got = turn(server)
    assert KEY[:8] not in got
    assert len(got) <= MAX_ACTION_CHARS + 1


def test_the_logs_are_left_alone_once_the_policy_is_closed() -> None:
    names = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy")
    before = [list(logging.getLogger(name).filters) for name in names]
    with RemotePolicy(config("http://127.0.0.1:9/v1")):
        assert [len(logging.getLogger(name).filters) for name in names] == [len(b) + 1 for b in before]
    assert [logging.getLogger(name).filters for name in names] == before


def test_without_the_variable_no_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAYFIX_API_KEY")
    with ChatServer([streamed(ANSWER), status(401, b"")]) as server:
        assert turn(server) == ANSWER
        assert "WAYFIX_API_KEY (it is not set)" in failure(server, EndpointRefused)
    assert all("Authorization" not in request.headers for request in server.requests)


def test_the_key_is_that_of_the_named_variable_without_its_line_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "another-key\n")
    with ChatServer([streamed(ANSWER)]) as server:
        turn(server, key_env="MY_KEY")
    assert server.requests[0].headers["Authorization"] == "Bearer another-key"


@pytest.mark.parametrize("bad", ["two words", "ключ-ключ", "a\nb-1234567"])
def test_a_key_that_no_header_can_hold_is_refused_unseen(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv("WAYFIX_API_KEY", bad)
    with pytest.raises(InvalidOption, match="WAYFIX_API_KEY must be ASCII") as caught:
        RemotePolicy(config("http://127.0.0.1:9/v1"))
    assert bad not in str(caught.value)


def test_a_placeholder_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYFIX_API_KEY", "EMPTY")
    with ChatServer([streamed("EMPTY")]) as server:
        assert turn(server) == "EMPTY"
    assert "EMPTY" not in repr(Secret("WAYFIX_API_KEY"))


# ---- the way to the server


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_this_machine_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    with closed_port() as port, ChatServer([streamed(ANSWER)]) as server:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
        assert turn(server) == ANSWER


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_a_server_without_a_trusted_certificate_never_sees_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate, private = tmp_path / "certificate.pem", tmp_path / "private.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(private), "-out", str(certificate)]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names, *files],
        check=True,
        capture_output=True,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, private)
    with ChatServer([streamed(ANSWER)] * 2, tls) as server:
        assert "CERTIFICATE_VERIFY_FAILED" in failure(server, EndpointUnreachable)
        assert server.requests == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert turn(server) == ANSWER


# ---- the configuration


def test_what_is_not_told_has_its_usual_value() -> None:
    made = RemoteConfig(endpoint="https://example.com/v1/", model="m")
    assert made.endpoint == "https://example.com/v1"
    assert RemoteConfig(endpoint=" HTTPS://example.com/V1 ", model="m").endpoint == "https://example.com/V1"
    assert (made.key_env, made.tools, made.temperature, made.seed) == ("WAYFIX_API_KEY", "native", 0.0, None)
    assert (made.max_tokens, made.sizes, made.image_format, made.jpeg_quality) == (512, ImageSizes(), "jpeg", 90)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"endpoint": None}, "endpoint"),
        ({"endpoint": ""}, "http or https"),
        ({"endpoint": "127.0.0.1:8000/v1"}, "http or https"),
        ({"endpoint": "ftp://host/v1"}, "http or https"),
        ({"endpoint": "http:///v1"}, "http or https"),
        ({"endpoint": "http://host:port/v1"}, "no URL"),
        ({"endpoint": "http://[::1/v1"}, "no URL"),
        ({"endpoint": "http://user:hunter2@host/v1"}, "user or password"),
        ({"endpoint": "http://hunter2@host/v1"}, "user or password"),
        ({"endpoint": "http://host/v1?key=hunter2"}, "without /chat/completions, query"),
        ({"endpoint": "http://host/v1/chat/completions"}, "base URL"),
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"model": "half \ud83d"}, "model"),
        ({"api_key": "hunter2"}, "api_key"),
        ({"key_env": "sk-hunter2"}, "key_env"),
        ({"tools": "hunter2"}, "'native' or 'text'"),
        ({"image_format": "gif"}, "'jpeg' or 'png'"),
        ({"jpeg_quality": 0}, "jpeg_quality"),
        ({"temperature": float("nan")}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"turn_timeout_s": 0}, "turn_timeout_s"),
        ({"connect_timeout_s": float("inf")}, "connect_timeout_s"),
        ({"retries": -1}, "retries"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name_and_not_shown(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason) as caught:
        RemoteConfig(**{"endpoint": "http://127.0.0.1:8000/v1", "model": "m", **change})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


@pytest.mark.parametrize("missing", ["endpoint", "model"])
def test_a_missing_endpoint_or_model_is_refused(missing: str) -> None:
    values = {"endpoint": "http://127.0.0.1:8000/v1", "model": "m"}
    del values[missing]
    with pytest.raises(InvalidOption, match=f"{missing}: Field required"):
        RemoteConfig(**values)
    with pytest.raises(InvalidOption, match=missing):
        RemoteConfig.model_validate(values)


# ---- threads, and the end


def test_episodes_of_several_threads_share_a_policy_and_are_not_mixed(town: Scene) -> None:
    def by_query(exchange: Exchange) -> None:
        query = exchange.request.messages[1]["content"][1]["text"].rsplit("Find: ")[-1]
        x = int(query.split()[-1])
        turns = sum(message["role"] == "assistant" for message in exchange.request.messages)
        time.sleep(0.01 * (x % 3))
        last = streamed(format_answer("v1", (x, x, x + 5, x + 5)))
        (last if turns == 2 else called("zoom_in", {**ZOOM, "crop_box": [x, x, x + 500, x + 500]}))(exchange)

    found: dict[int, Search] = {}
    with ChatServer([by_query] * 24) as server, RemotePolicy(config(server)) as policy:
        grounder = Grounder(town, policy)

        def run(x: int) -> None:
            found[x] = grounder.ground(f"car {x}", 30)

        threads = [threading.Thread(target=run, args=(x,)) for x in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert policy._links == {}
    for x, (result, _, trace) in found.items():
        assert result.code == "ok"
        assert trace.turns[-1].text == format_answer("v1", (x, x, x + 5, x + 5))
    assert len(found) == 8


def threads_of_policies() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "wayfix-remote"]


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    assert threads_of_policies() == []
    yield
    assert threads_of_policies() == []


@pytest.mark.usefixtures("no_thread_left")
def test_closing_ends_running_turns_and_leaves_no_thread() -> None:
    errors: list[Exception] = []
    with ChatServer([stall] * 3) as server:
        policy = RemotePolicy(config(server))

        def run() -> None:
            try:
                next(policy.respond("e", PROMPT, Deadline(30)))
            except PolicyFailed as error:
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 10
        while len(server.requests) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        policy.close()
        policy.close()
        for thread in threads:
            thread.join()
        assert server.left.wait(5)
    assert [str(error) for error in errors] == ["this remote policy was closed during the turn"] * 3
    with pytest.raises(PolicyFailed, match="has been closed"):
        next(policy.respond("e", PROMPT, Deadline(30)))


@pytest.mark.usefixtures("no_thread_left")
def test_a_failed_endpoint_leaves_no_thread_either() -> None:
    with closed_port() as port:
        failure(f"http://127.0.0.1:{port}/v1", EndpointUnreachable)


def test_an_image_is_encoded_once_and_dropped_with_its_episode(town: Scene) -> None:
    kept: list[dict[str, str]] = []

    def keep(exchange: Exchange) -> None:
        kept.append(dict(next(iter(policy._links.values()))))
        (called("zoom_in", ZOOM) if len(kept) == 1 else streamed(ANSWER))(exchange)

    with ChatServer([keep] * 2) as server, RemotePolicy(config(server)) as policy:
        Grounder(town, policy).ground(QUERY, 30)
        assert policy._links == {}
    assert [list(links) for links in kept] == [["v0"], ["v0", "v1"]]
    assert kept[0]["v0"] is kept[1]["v0"]


def test_tokens_that_are_no_numbers_are_left_out(town: Scene) -> None:
    with ChatServer([streamed(ANSWER_V0, usage("many", -3))]) as server:
        _, _, trace = search(town, server)
    # The server's own, later word counts; this one tells nothing.
    assert (trace.turns[0].prompt_tokens, trace.turns[0].completion_tokens) == (120, 7)
    odd = whole({"content": ANSWER_V0}, usage={"prompt_tokens": True, "completion_tokens": 1.5})
    with ChatServer([odd]) as server:
        _, _, trace = search(town, server)
    assert (trace.turns[0].prompt_tokens, trace.turns[0].completion_tokens) == (None, None)


def test_not_found_is_an_answer(town: Scene) -> None:
    with ChatServer([streamed(format_not_found())]) as server:
        assert search(town, server)[0].code == "not_found"
