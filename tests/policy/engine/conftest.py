"""Engines of a tiny model with random weights, made without torch, and conversations for them to read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from wayfix.agent.deadline import Deadline
from wayfix.agent.messages import Message, Prompt
from wayfix.agent.protocol import ANSWER_NOW_TEXT, CALL_NOW_TEXT, OVERVIEW_TEXT, QUERY_TEXT
from wayfix.geo.boxes import WorldBox
from wayfix.geo.transforms import ViewTransform
from wayfix.policy.engine.chat import TokenPrompt
from wayfix.policy.engine.engine import Engine, EngineConfig
from wayfix.policy.engine.graphs import Watch
from wayfix.policy.engine.manifest import Precisions, Target
from wayfix.policy.engine.sequence import NewTokens, TokenSequence
from wayfix.tools.arguments import TOOLS, tool_schema
from wayfix.views.view import ImageSizes, View

SIDE = 256
"""The smallest image that the tiny model takes as it is: 64 tokens."""
TOLERANCE = 1e-5
"""What the order of float32 sums may differ by, as relative L2."""

PRECISIONS: dict[str, tuple[Target, Precisions]] = {
    "fp32": ("cpu", Precisions(vision="fp32", embedding="fp32", decoder="fp32")),
    "int8": ("cpu", Precisions(vision="int8", embedding="fp16", decoder="int8")),
    "int4": ("cpu", Precisions(vision="fp32", embedding="fp16", decoder="int4")),
    "trt": ("cuda", Precisions(vision="fp16", embedding="fp16", decoder="fp16")),
}
Export = Callable[[str], Path]

SYSTEM = "Find one object in a city, which you see from above."
"""Shorter than the protocol's: the model makes nothing of either."""


@pytest.fixture(scope="session")
def write_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes a checkpoint of a size."""
    for module in ("onnx", "safetensors", "ml_dtypes"):
        pytest.importorskip(module)
    from wayfix_export.synthetic import write_checkpoint

    def write(size: str) -> Path:
        folder = tmp_path_factory.mktemp("checkpoints") / size
        write_checkpoint(folder, size, seed=0)
        return folder

    return write


@pytest.fixture(scope="session")
def checkpoint(write_model: Callable[[str], Path]) -> Path:
    """The tiny model's checkpoint."""
    return write_model("tiny")


def write_engine(checkpoint: Path, out: Path, kind: str) -> Path:
    """An engine folder of one of the PRECISIONS."""
    from wayfix_export.export import ExportOptions, write_unproven

    target, precision = PRECISIONS[kind]
    write_unproven(checkpoint, out, ExportOptions(target, precision, ImageSizes(SIDE, SIDE, SIDE)))
    return out


@pytest.fixture(scope="session")
def export(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """The tiny model's engine folders by kind, made once; nobody changes them."""
    return cache(lambda kind: write_engine(checkpoint, tmp_path_factory.mktemp("engines") / kind, kind))


@pytest.fixture(scope="session")
def folder(export: Export) -> Path:
    """An engine in float32."""
    return export("fp32")


@pytest.fixture(scope="session")
def engine(folder: Path) -> Engine:
    """An engine for tests that change nothing but its caches."""
    return Engine(folder)


@pytest.fixture
def own_engine(folder: Path) -> Engine:
    """An engine that a test may take apart."""
    return Engine(folder)


@pytest.fixture(scope="session")
def small_engine(folder: Path) -> Engine:
    """An engine that takes 64 tokens an episode."""
    return Engine(folder, EngineConfig(max_tokens=64))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of tokens whenever a decoder has read some."""
    seen: list[int] = []
    extend = TokenSequence.extend

    def spy(self: TokenSequence, new: NewTokens, *rest: object) -> NDArray[np.float32]:
        logits = extend(self, new, *rest)  # type: ignore[arg-type]
        seen.append(len(new.identity))
        return logits

    monkeypatch.setattr(TokenSequence, "extend", spy)
    return seen


def unwatched() -> Watch:
    """A watch with all the time there is."""
    return Watch(Deadline(math.inf))


def relative_l2(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(a.astype(np.float64) - b) / np.linalg.norm(b.astype(np.float64)))


# ---- what a model reads


def picture(seed: int, height: int = SIDE, width: int = SIDE) -> NDArray[np.uint8]:
    """Coloured squares, so that different pictures look different to any model."""
    squares = np.random.default_rng(seed).integers(0, 256, (-(-height // 32), -(-width // 32), 3), np.uint8)
    return np.ascontiguousarray(squares.repeat(32, axis=0).repeat(32, axis=1)[:height, :width])


def view(name: str, seed: int, height: int = SIDE, width: int = SIDE) -> View:
    """A view of some place; those named o1, o2, ... are oblique."""
    extent = WorldBox(0, 0, width, height)
    transform = None if name.startswith("o") else ViewTransform.north_up(extent, width, height)
    return View(name, picture(seed, height, width), extent, transform)


@dataclass
class Conversation:
    """An episode without a scene: whatever the model says, a picture comes back."""

    query: str = "the red car next to the school"
    scene: int = 0
    """Conversations on one scene begin with the same picture."""
    tools: tuple[str, ...] = tuple(TOOLS)
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        place = OVERVIEW_TEXT.format(width=300, height=200)
        query = QUERY_TEXT.format(query=self.query)
        # Scenes are of several shapes.
        overview = view("v0", self.scene, SIDE + 32 * (self.scene % 3), SIDE)
        self.messages = [Message("system", (SYSTEM,)), Message("user", (overview, place, query))]

    def prompt(self, must_answer: bool = False, must_call: str | None = None) -> Prompt:
        """What the model reads before its next turn."""
        messages = tuple(self.messages)
        if must_answer:
            messages += (Message("user", (ANSWER_NOW_TEXT,)),)
        elif must_call:
            messages += (Message("user", (CALL_NOW_TEXT.format(tool=must_call),)),)
        return Prompt(tuple(tool_schema(name) for name in self.tools), messages, self.query, must_answer, must_call)

    def said(self, text: str) -> Conversation:
        """The model's turn, and the answer to it: a picture of its own."""
        turn = len(self.messages) // 2
        seen = view(f"v{turn}", 1000 + 100 * self.scene + 10 * turn + len(self.query))
        self.messages += [
            Message("assistant", (text,)),
            Message("tool", (seen, f'{{"view_id": "v{turn}"}}', f"Turns left: {8 - turn}.")),
        ]
        return self


def words(count: int, seed: int = 0) -> TokenPrompt:
    """Plain text of so many tokens."""
    ids = np.random.default_rng(seed).integers(0, 256, count)
    return TokenPrompt(ids, ids, ())
