"""A policy that guesses: what any other has to beat."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import numpy as np

from wayfix.agent.deadline import Deadline
from wayfix.agent.messages import Prompt
from wayfix.agent.protocol import format_answer, format_call, format_not_found
from wayfix.geo.boxes import UNIT_MAX, UnitBox
from wayfix.policy.interface import Chunk
from wayfix.views.view import ImageSizes, View

NOT_FOUND_ODDS = 0.07
ZOOM_ODDS = 0.5
CROP_SHARE = (0.2, 0.5)
"""Sides of a crop, as shares of its view's."""
SIDE_M = (2.0, 40.0)
"""Sides of an answer, drawn on a log scale: cars and buildings."""


class RandomPolicy:
    """Zooms somewhere or not, then answers a box somewhere. The same for the same seed and query."""

    name = "random"

    def __init__(self, seed: int = 0, sizes: ImageSizes | None = None) -> None:
        self.seed = seed
        self.sizes = sizes or ImageSizes()

    def respond(self, episode_id: str, prompt: Prompt, deadline: Deadline) -> Iterator[Chunk]:
        """A random legal action."""
        deadline.check()
        turn = sum(message.role == "assistant" for message in prompt.messages)
        rng = np.random.default_rng([self.seed, zlib.crc32(prompt.query.encode()), turn])
        view = [v for message in prompt.messages for v in message.views if v.bev][-1]
        offered = [tool["function"]["name"] for tool in prompt.tools]
        tool = prompt.must_call or ("zoom_in" if "zoom_in" in offered and rng.random() < ZOOM_ODDS else None)
        if prompt.must_answer or tool is None:
            text = format_not_found() if rng.random() < NOT_FOUND_ODDS else format_answer(view.id, _answer(rng, view))
        elif tool == "zoom_in":
            text = format_call(tool, {"source_view_id": view.id, "crop_box": list(_crop(rng))})
        elif tool == "oblique_render":
            arguments = {"source_view_id": view.id, "candidate_box": list(_answer(rng, view)), "direction": "south"}
            text = format_call(tool, arguments)
        else:
            text = format_call(tool, {"landmark_name": prompt.query[:200], "source_view_id": view.id})
        yield Chunk(text)

    def forget(self, episode_id: str) -> None:
        """Nothing is kept."""


def _crop(rng: np.random.Generator) -> UnitBox:
    width, height = (rng.uniform(*CROP_SHARE, 2) * UNIT_MAX).astype(int)
    return _placed(rng, int(width), int(height))


def _answer(rng: np.random.Generator, view: View) -> UnitBox:
    sides = (
        np.exp(rng.uniform(math.log(SIDE_M[0]), math.log(SIDE_M[1]), 2))
        / (view.region.width, view.region.height)
        * UNIT_MAX
    )
    width, height = np.clip(sides, 1, UNIT_MAX).astype(int)
    return _placed(rng, int(width), int(height))


def _placed(rng: np.random.Generator, width: int, height: int) -> UnitBox:
    x, y = int(rng.integers(0, UNIT_MAX - width + 1)), int(rng.integers(0, UNIT_MAX - height + 1))
    return x, y, x + width, y + height
