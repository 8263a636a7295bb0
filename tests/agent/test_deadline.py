"""Deadlines and cancellation: every search ends by then, with a code and the best box so far."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from wayfix.agent.deadline import Deadline, TurnCosts
from wayfix.agent.loop import Grounder
from wayfix.agent.messages import Prompt
from wayfix.agent.protocol import format_answer, format_call
from wayfix.errors import Cancelled, DeadlineExceeded
from wayfix.geo.boxes import WorldBox
from wayfix.policy.interface import Chunk
from wayfix.policy.scripted import ScriptedPolicy
from wayfix.scene.scene import Scene
from wayfix.views.view import ImageSizes

At = Callable[[float, float, float, float], WorldBox]
QUERY = "the white car"
ZOOM = format_call("zoom_in", {"source_view_id": "v0", "crop_box": [0, 0, 500, 500]})
ANSWER = format_answer("v0", (0, 0, 10, 10))


def expire(deadline: Deadline) -> None:
    """Let the deadline be now."""
    deadline.instant = deadline.started


class Talker:
    """Zooms in its first turn; in its second one it talks in small pieces and never ends."""

    name = "talker"
    sizes = ImageSizes(overview=64, zoom=64)

    def __init__(self, at_piece: int = -1, then: Callable[[Deadline], None] = expire) -> None:
        self.at_piece = at_piece
        self.then = then
        self.pieces = 0
        self.closed = 0
        self.forgotten = 0

    def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
        if len(prompt.messages) == 2:
            yield Chunk(ZOOM)
            return
        try:
            while True:
                if self.pieces == self.at_piece:
                    self.then(deadline)
                self.pieces += 1
                yield Chunk("")
        finally:
            self.closed += 1

    def forget(self, episode_id: str) -> None:
        self.forgotten += 1


def test_an_endless_turn_ends_at_the_deadline_with_the_best_box(town: Scene, at: At) -> None:
    policy = Talker()
    grounder = Grounder(town, policy)
    grounder.toolbox.views.zoom(town.extent, 64)  # the scene's files are open before the clock starts
    result, _, trace = grounder.ground(QUERY, 1.0)
    assert (result.code, result.partial, result.turns) == ("deadline_exceeded", True, 1)
    assert result.box is not None
    assert (result.box.min_x, result.box.max_y) == (at(0, 40, 60, 80).min_x, at(0, 40, 60, 80).max_y)
    assert (result.box.min_z, result.box.max_z) == (50.0, 59.0)
    assert "budget ended" in result.message
    assert result.budget_ms == 1000.0
    assert [turn.action for turn in trace.turns] == ["zoom_in"]
    assert (policy.closed, policy.forgotten) == (1, 1)


def test_a_turn_is_closed_after_the_very_piece_at_which_the_deadline_passed(town: Scene) -> None:
    policy = Talker(at_piece=5)
    result, _, _ = Grounder(town, policy).ground(QUERY)
    assert (result.code, result.partial) == ("deadline_exceeded", True)
    assert (policy.pieces, policy.closed, policy.forgotten) == (6, 1, 1)


def test_an_answer_that_comes_after_the_deadline_is_late(town: Scene) -> None:
    class Late(Talker):
        def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
            expire(deadline)
            yield Chunk(ANSWER)

    result, _, _ = Grounder(town, Late()).ground(QUERY)
    assert (result.code, result.box, result.turns) == ("deadline_exceeded", None, 0)


def test_a_deadline_that_passes_during_a_tool_ends_the_search_before_the_next_turn(town: Scene) -> None:
    policy, deadline = Talker(), Deadline(60)
    result, _, trace = Grounder(town, policy).ground(QUERY, 60, lambda _: expire(deadline), deadline)
    assert (result.code, result.partial, result.turns) == ("deadline_exceeded", True, 1)
    assert policy.pieces == 0
    assert trace.turns[0].action == "zoom_in"


def test_a_policy_that_checks_the_deadline_itself_ends_the_search_in_the_same_way(town: Scene) -> None:
    class Careful(Talker):
        def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
            if len(prompt.messages) > 2:
                expire(deadline)
                deadline.check()
            yield Chunk(ZOOM)

    result, _, _ = Grounder(town, Careful()).ground(QUERY)
    assert (result.code, result.partial, result.turns) == ("deadline_exceeded", True, 1)


def test_a_search_cancelled_from_another_thread_ends_as_cancelled(town: Scene) -> None:
    talking, deadline = threading.Event(), Deadline(60)

    def cancel() -> None:
        talking.wait(30)
        deadline.cancel()

    policy = Talker(at_piece=3, then=lambda _: talking.set())
    thread = threading.Thread(target=cancel)
    thread.start()
    result, _, trace = Grounder(town, policy).ground(QUERY, deadline=deadline)
    thread.join()
    assert (result.code, result.message, result.partial) == ("cancelled", "the request was cancelled", True)
    assert trace.code == "cancelled"
    assert (policy.closed, policy.forgotten) == (1, 1)


def test_a_search_cancelled_before_it_starts_asks_no_policy(town: Scene) -> None:
    deadline = Deadline(60)
    deadline.cancel()
    policy = Talker()
    result, _, trace = Grounder(town, policy).ground(QUERY, deadline=deadline)
    assert (result.code, result.box, result.partial, result.turns) == ("cancelled", None, False, 0)
    assert trace.turns == []


def test_the_next_search_is_not_cancelled(town: Scene) -> None:
    deadline = Deadline(60)
    deadline.cancel()
    grounder = Grounder(town, ScriptedPolicy([ANSWER]))
    assert grounder.ground(QUERY, deadline=deadline)[0].code == "cancelled"
    assert grounder.ground(QUERY)[0].code == "ok"


def test_a_policy_that_will_not_be_closed_does_not_keep_the_search_from_ending_with_a_code(town: Scene) -> None:
    class Stubborn(Talker):
        def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
            try:
                expire(deadline)
                yield Chunk("")
            finally:
                yield Chunk("")  # Python then raises RuntimeError: generator ignored GeneratorExit

    result, _, _ = Grounder(town, Stubborn()).ground(QUERY)
    assert result.code in ("deadline_exceeded", "policy_failed")


def test_a_policy_that_cannot_forget_does_not_spoil_the_answer(town: Scene) -> None:
    class Forgetless(ScriptedPolicy):
        def forget(self, episode_id: str) -> None:
            raise RuntimeError("no such episode")

    result, _, _ = Grounder(town, Forgetless([ANSWER])).ground(QUERY)
    assert result.code in ("ok", "policy_failed")


# ---- planning with what turns cost


def first_prompts(grounder_costs: TurnCosts, town: Scene, budget_s: float) -> list[bool]:
    """Whether the policy had to answer, turn by turn; it goes on until it has to."""
    told: list[bool] = []

    def turn(prompt: Prompt) -> str:
        told.append(prompt.must_answer)
        return ANSWER if prompt.must_answer else "hm"

    grounder = Grounder(town, ScriptedPolicy([turn] * 8, ImageSizes(overview=64)))
    grounder.costs = grounder_costs
    grounder.ground(QUERY, budget_s)
    return told


def test_the_policy_must_answer_once_a_tool_turn_no_longer_fits(town: Scene) -> None:
    costs = TurnCosts()
    costs.add("zoom_in", 100.0)
    costs.add("answer", 10.0)
    assert first_prompts(costs, town, 105.0) == [True]
    assert first_prompts(costs, town, 1000.0) == [False] * 7 + [True]


def test_the_time_for_the_answer_is_kept(town: Scene) -> None:
    costs = TurnCosts()
    costs.add("answer", 100.0)
    assert first_prompts(costs, town, 99.0) == [True]
    assert first_prompts(costs, town, 1000.0)[0] is False


def test_nothing_is_known_to_be_too_dear_before_the_first_turn() -> None:
    assert TurnCosts().affordable(Deadline(0.5))
    assert TurnCosts().expected("zoom_in") == 0.0


def test_the_dearest_of_the_tools_counts_and_only_the_latest_turns() -> None:
    costs = TurnCosts(kept=3)
    for seconds in (900.0, 1.0, 3.0, 2.0):
        costs.add("zoom_in", seconds)
    costs.add("oblique_render", 50.0)
    costs.add("answer", 7.0)
    assert costs.expected("zoom_in") == 3.0
    assert costs.affordable(Deadline(60))
    assert not costs.affordable(Deadline(56))


def test_what_a_search_costs_is_remembered_by_the_kind_of_turn(town: Scene) -> None:
    grounder = Grounder(town, ScriptedPolicy([ZOOM, "hm", ANSWER], ImageSizes(overview=64, zoom=64)))
    grounder.ground(QUERY)
    assert all(grounder.costs.expected(kind) > 0 for kind in ("zoom_in", "invalid", "answer"))
    assert grounder.costs.expected("oblique_render") == 0


def test_one_slow_turn_does_not_forbid_tools_for_ever(town: Scene) -> None:
    # As when the first oblique view compiles its kernels: 100 s once, while 60 s are allowed for a search.
    allowed: list[bool] = []

    def turn(prompt: Prompt) -> str:
        allowed.append(not prompt.must_answer)
        return ZOOM if allowed[-1] else ANSWER

    grounder = Grounder(town, ScriptedPolicy([turn, ANSWER], ImageSizes(overview=64, zoom=64)))
    grounder.costs.add("zoom_in", 100.0)
    for _ in range(100):
        grounder.ground(QUERY, 60.0)
    assert not allowed[0]
    assert allowed[-1]


# ---- the deadline itself


def test_a_deadline_in_the_future_lets_work_go_on() -> None:
    deadline = Deadline(3600)
    deadline.check()
    assert 3590 < deadline.remaining() <= 3600
    assert deadline.elapsed() >= 0


def test_a_deadline_in_the_past_ends_work() -> None:
    deadline = Deadline(3600)
    expire(deadline)
    assert deadline.remaining() <= 0
    with pytest.raises(DeadlineExceeded) as caught:
        deadline.check()
    assert caught.value.code == "deadline_exceeded"


def test_a_cancelled_request_is_cancelled_even_where_it_is_late_too() -> None:
    deadline = Deadline(3600)
    expire(deadline)
    deadline.cancel()
    with pytest.raises(Cancelled) as caught:
        deadline.check()
    assert caught.value.code == "cancelled"
