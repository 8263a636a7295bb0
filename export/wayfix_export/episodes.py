"""Recorded episodes: what calibration and parity feed a model, as a real search would."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wayfix.agent.deadline import Deadline
from wayfix.agent.loop import Grounder
from wayfix.agent.messages import Message, Prompt
from wayfix.policy.baseline import BaselinePolicy
from wayfix.policy.interface import Chunk
from wayfix.scene.scene import Scene
from wayfix.synth.city import CityConfig, build_city
from wayfix.synth.expressions import make_expressions
from wayfix.synth.write import write_city
from wayfix.views.view import ImageSizes


@dataclass(frozen=True)
class RecordedTurn:
    """A prompt, and what was said to it."""

    prompt: Prompt
    reply: str


Episode = tuple[RecordedTurn, ...]


class _Recorder:
    """Lets the baseline search, and looks over its shoulder."""

    def __init__(self, sizes: ImageSizes) -> None:
        self._baseline = BaselinePolicy()
        self.name, self.sizes = "recorder", sizes
        self.turns: list[RecordedTurn] = []

    def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
        said = list(self._baseline.respond(episode_id, prompt, deadline))
        self.turns.append(RecordedTurn(prompt, "".join(chunk.text for chunk in said)))
        yield from said

    def forget(self, episode_id: str) -> None:
        self._baseline.forget(episode_id)


def record(scene: Scene, queries: Sequence[str], sizes: ImageSizes) -> list[Episode]:
    """Search for each query with the baseline, in images of the sizes the model wants."""
    recorder = _Recorder(sizes)
    grounder = Grounder(scene, recorder)
    episodes = []
    for query in queries:
        recorder.turns = []
        grounder.ground(query)
        episodes.append(tuple(recorder.turns))
    return episodes


def recorded_in_a_city(count: int, sizes: ImageSizes, seed: int = 7) -> list[Episode]:
    """Episodes in a procedural city, those with most images first."""
    city = build_city(CityConfig(seed=seed))
    with tempfile.TemporaryDirectory(prefix="wayfix-episodes-") as folder:
        path = Path(folder) / "scene"
        expressions = make_expressions(city, 4 * count, seed)
        write_city(path, city, expressions)
        with Scene(path) as scene:
            episodes = record(scene, [expression.query for expression in expressions], sizes)
    episodes.sort(key=_images, reverse=True)
    return episodes[:count]


def conversation(episode: Episode) -> Prompt:
    """The last prompt of an episode, with its reply said and a next turn about to begin."""
    last = episode[-1].prompt
    messages = (*last.messages, Message("assistant", (episode[-1].reply,)), Message("user", ("Go on.",)))
    return Prompt(last.tools, messages, last.query, must_answer=False)


def _images(episode: Episode) -> int:
    return sum(len(message.views) for message in episode[-1].prompt.messages)
