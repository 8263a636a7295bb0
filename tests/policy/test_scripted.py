"""A policy that reads its turns from a list."""

from __future__ import annotations

import pytest

from wayfix.agent.deadline import Deadline
from wayfix.agent.messages import Prompt
from wayfix.errors import PolicyFailed
from wayfix.policy.interface import Chunk
from wayfix.policy.scripted import ScriptedPolicy
from wayfix.views.view import ImageSizes

PROMPT = Prompt((), (), "the red car", must_answer=False)


def turn(policy: ScriptedPolicy, episode: str) -> list[Chunk]:
    return list(policy.respond(episode, PROMPT, Deadline(60)))


def test_texts_pieces_and_functions_of_the_prompt_are_given_in_order() -> None:
    policy = ScriptedPolicy(["a", Chunk("b", 0.5), lambda prompt: prompt.query])
    assert [turn(policy, "e") for _ in range(3)] == [[Chunk("a")], [Chunk("b", 0.5)], [Chunk("the red car")]]


def test_an_exception_is_raised_at_its_turn() -> None:
    policy = ScriptedPolicy(["a", KeyError("k")])
    assert turn(policy, "e") == [Chunk("a")]
    with pytest.raises(KeyError):
        turn(policy, "e")


def test_the_end_of_the_script_is_a_failure() -> None:
    with pytest.raises(PolicyFailed, match="0 turns and no final answer") as caught:
        turn(ScriptedPolicy([]), "e")
    assert caught.value.code == "policy_failed"


def test_every_episode_reads_the_script_from_its_start() -> None:
    policy = ScriptedPolicy(["a", "b"])
    assert [turn(policy, e)[0].text for e in ("x", "y", "x", "y")] == ["a", "a", "b", "b"]
    policy.forget("x")
    policy.forget("never seen")
    assert turn(policy, "x") == [Chunk("a")]


def test_name_and_image_sizes_can_be_chosen() -> None:
    assert (ScriptedPolicy([]).name, ScriptedPolicy([]).sizes) == ("scripted", ImageSizes())
    policy = ScriptedPolicy([], ImageSizes(zoom=32), "oracle")
    assert (policy.name, policy.sizes.zoom) == ("oracle", 32)
