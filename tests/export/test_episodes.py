"""Episodes are searches as a model would read them, with what was said at each turn."""

from __future__ import annotations

import itertools

import pytest

from wayfix.agent.messages import Message
from wayfix.agent.protocol import Answer, NotFound, parse_action
from wayfix.scene.scene import Scene
from wayfix.views.view import ImageSizes
from wayfix_export.episodes import Episode, conversation, record, recorded_in_a_city


def images(episode: Episode) -> int:
    return sum(len(message.views) for message in episode[-1].prompt.messages)


def test_there_is_an_episode_for_each_query(town: Scene) -> None:
    queries = ["Red Hall", "the white car next to the Red Hall", "the purple elephant"]
    episodes = record(town, queries, ImageSizes(320, 256, 256))
    assert [episode[0].prompt.query for episode in episodes] == queries


def test_a_turn_is_a_prompt_and_what_was_said_to_it(episodes: list[Episode]) -> None:
    for episode in episodes:
        *_, last = [parse_action(turn.reply)[1] for turn in episode]
        assert isinstance(last, (Answer, NotFound))
        for before, after in itertools.pairwise(episode):
            said = after.prompt.messages[len(before.prompt.messages)]
            assert said.role == "assistant" and said.text == before.reply


def test_images_have_the_sizes_asked_for(town: Scene) -> None:
    (episode,) = record(town, ["the white car next to the Red Hall"], ImageSizes(320, 200, 160))
    views = [view for message in episode[-1].prompt.messages for view in message.views]
    assert max(views[0].image.shape) == 320
    assert all(max(view.image.shape) <= 200 for view in views[1:]) and len(views) > 1


def test_a_conversation_goes_on_after_the_last_reply(episodes: list[Episode]) -> None:
    for episode in episodes:
        prompt, last = conversation(episode), episode[-1]
        assert prompt.messages[: len(last.prompt.messages)] == last.prompt.messages
        assert prompt.messages[-2] == Message("assistant", (last.reply,))
        assert prompt.messages[-1].role == "user"
        assert prompt.tools == last.prompt.tools


@pytest.mark.slow
def test_those_with_most_images_come_first() -> None:
    episodes = recorded_in_a_city(2, ImageSizes(256, 256, 256))
    assert len(episodes) == 2
    assert images(episodes[0]) >= images(episodes[1]) >= 3
