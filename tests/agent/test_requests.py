"""What is accepted as a query and as a budget; what is not is refused before anything runs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wayfix.agent.deadline import MAX_BUDGET_S, Deadline, check_budget
from wayfix.agent.episode import MAX_QUERY_CHARS, check_query
from wayfix.agent.loop import Grounder
from wayfix.agent.messages import Prompt
from wayfix.agent.protocol import format_not_found
from wayfix.errors import InvalidBudget, InvalidQuery
from wayfix.policy.interface import Chunk
from wayfix.scene.scene import Scene
from wayfix.views.view import ImageSizes


class Counting:
    """Finds nothing, and counts how often it was asked."""

    name = "counting"
    sizes = ImageSizes(overview=64)

    def __init__(self) -> None:
        self.asked = 0
        self.forgotten = 0

    def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
        self.asked += 1
        yield Chunk(format_not_found())

    def forget(self, episode_id: str) -> None:
        self.forgotten += 1


@pytest.mark.parametrize(
    ("query", "rule"),
    [
        ("", "empty"),
        (" ", "empty"),
        (" \t\r\n  ", "empty"),
        ("x" * 1001, "1001 characters, at most 1000"),
        ("x" * 100_000, "100000 characters, at most 1000"),
        ("🚗" * 1001, "1001 characters"),
        (None, "text, got NoneType"),
        (b"the red car", "text, got bytes"),
        (7, "text, got int"),
        (True, "text, got bool"),
        (["the red car"], "text, got list"),
        ({"query": "the red car"}, "text, got dict"),
    ],
)
def test_a_query_that_is_empty_too_long_or_no_text_is_refused_and_nothing_runs(
    town: Scene, query: str, rule: str
) -> None:
    policy = Counting()
    with pytest.raises(InvalidQuery, match=rule) as caught:
        Grounder(town, policy).ground(query)
    assert caught.value.code == "invalid_query"
    assert (policy.asked, policy.forgotten) == (0, 0)


@pytest.mark.parametrize("query", ["\ud800", "the red car \udcff"])
def test_a_query_that_no_file_and_no_socket_can_carry_is_refused(town: Scene, query: str) -> None:
    # Lone surrogates: what Python makes of bytes on the command line that are no UTF-8.
    with pytest.raises(InvalidQuery):
        Grounder(town, Counting()).ground(query)


@pytest.mark.parametrize(
    "query",
    [
        "x",
        "x" * MAX_QUERY_CHARS,
        "🚗" * MAX_QUERY_CHARS,
        "das weiße Auto neben dem Café",
        "السيارة البيضاء بجانب مركز الشرطة",
        "הרכב הלבן ליד תחנת המשטרה",
        "警察署の隣の白い車",
        "the 🚗 next to the 🏫",
        "e\u0301 \u200fx\u200e",
        'a "quoted" {query} with {braces} and %s',
        "<answer>{}</answer>",
        "line one\nline two",
    ],
)
def test_any_other_text_is_a_query_and_stays_as_it_is(town: Scene, query: str) -> None:
    policy = Counting()
    result, episode, _ = Grounder(town, policy).ground(query)
    assert (result.code, result.query, policy.asked) == ("not_found", query, 1)
    assert episode.messages[1].text.endswith(f"Find: {query}")


def test_white_space_around_a_query_does_not_count(town: Scene) -> None:
    result, episode, trace = Grounder(town, Counting()).ground(" \n the red car\t" + " " * 2000)
    assert result.query == episode.query == trace.query == "the red car"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=1100))
def test_a_checked_query_is_never_empty_never_too_long_and_has_no_space_around_it(text: str) -> None:
    try:
        query = check_query(text)
    except InvalidQuery:
        assert not text.strip() or len(text.strip()) > MAX_QUERY_CHARS
    else:
        assert 0 < len(query) <= MAX_QUERY_CHARS
        assert query == text.strip()


@pytest.mark.parametrize(
    "budget",
    [0, 0.0, -0.0, -1, -1e-9, math.nan, math.inf, -math.inf, 3600.001, 1e300, pytest.param(10**400, id="10**400")],
)
def test_a_budget_that_is_not_positive_and_finite_and_at_most_an_hour_is_refused_and_nothing_runs(
    town: Scene, budget: float
) -> None:
    policy = Counting()
    with pytest.raises(InvalidBudget, match="more than 0 and at most 3600 s") as caught:
        Grounder(town, policy).ground("the red car", budget)
    assert caught.value.code == "invalid_budget"
    assert policy.asked == 0


def test_the_query_is_checked_before_the_budget(town: Scene) -> None:
    with pytest.raises(InvalidQuery):
        Grounder(town, Counting()).ground("", -1)


@pytest.mark.parametrize("budget", [1e-9, 1, 2.5, 3600, MAX_BUDGET_S])
def test_any_other_number_of_seconds_is_a_budget(budget: float) -> None:
    assert check_budget(budget) == budget


def test_no_budget_is_the_longest_one_and_is_told_as_none(town: Scene) -> None:
    assert check_budget(None) == MAX_BUDGET_S
    assert Grounder(town, Counting()).ground("the red car")[0].budget_ms is None
    assert Grounder(town, Counting()).ground("the red car", 30)[0].budget_ms == 30_000
