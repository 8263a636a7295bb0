"""Demonstrations as tokens and pixels: one shard a city, made in worker processes, streamed by seed."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict
from tokenizers import Tokenizer

from wayfix.geo.boxes import UnitBox
from wayfix.policy.engine.chat import Chat
from wayfix.policy.engine.images import resized_shape
from wayfix.scene.scene import Scene
from wayfix.synth.city import City, CityConfig, build_city
from wayfix.synth.expressions import Expression, make_expressions
from wayfix.synth.write import write_city
from wayfix.tools.arguments import TOOLS
from wayfix.tools.toolbox import Toolbox
from wayfix.views.scene_views import SceneViews
from wayfix.views.view import View
from wayfix_train.data.cells import CellLabels, label_cells
from wayfix_train.data.demonstrations import Demonstration, Demonstrator, NoLandmarks
from wayfix_train.data.local_queries import MIN_VISIBLE, LocalQuery, local_queries
from wayfix_train.nano.layout import IMAGE_SPEC, SIZES, make_chat
from wayfix_train.nano.tokenizer import make_nano_tokenizer

SPARSE_POINTS_PER_M2 = 0.2
"""Of cities that are not looked at from the side: points cost half of a city's time."""

log = logging.getLogger(__name__)


class ShardConfig(BaseModel):
    """What a shard holds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    split: str = "train"
    decisions: int = 110
    """Episodes up to the first zoom, which need no image but the overview."""
    searches: int = 45
    """Whole episodes."""
    local_queries: int = 6
    """Sentences a zoom."""
    oblique_odds: float = 0.3
    """Of a city with points."""


@dataclass(frozen=True)
class Picture:
    """An image and what stands in it."""

    image: NDArray[np.uint8]
    """RGB (height, width, 3), at the size the model reads."""
    labels: CellLabels | None
    """None for an oblique image."""


@dataclass(frozen=True)
class TokenEpisode:
    """An episode as tokens."""

    ids: NDArray[np.int16]
    learned: tuple[tuple[int, int], ...]
    """Ranges of tokens that the model should write, the end of the turn included."""
    pictures: tuple[int, ...]
    """Numbers of the shard's pictures, in order; the first is the overview's, 0."""
    target: UnitBox | None
    """The target in the overview, for supervision of attention; None where it is absent."""
    answer_view: int
    """Which of `pictures` the last answer's box lies in, or -1."""
    local: tuple[LocalQuery, ...]
    """Further sentences about the last zoom."""


@dataclass(frozen=True)
class Shard:
    """A city's pictures and sequences."""

    seed: int
    pictures: tuple[Picture, ...]
    decisions: tuple[TokenEpisode, ...]
    searches: tuple[TokenEpisode, ...]


def make_shard(seed: int, config: ShardConfig, chat: Chat, tokenizer: Tokenizer) -> Shard:
    """Build a city and play in it."""
    rng = np.random.default_rng([seed, 77])
    points = 12.0 if rng.random() < config.oblique_odds else SPARSE_POINTS_PER_M2
    city = build_city(CityConfig(seed=seed, split=config.split, points_per_m2=points))
    cases = make_expressions(city, config.decisions + config.searches, seed)
    with tempfile.TemporaryDirectory(prefix="wayfix-city-") as folder:
        write_city(Path(folder) / "scene", city)
        with Scene(Path(folder) / "scene") as scene:
            views = SceneViews(scene)
            # The tool is offered, as in any scene with points; where they are sparse it is not used.
            toolbox = Toolbox(views, SIZES)
            blind = Toolbox(views, SIZES, tuple(TOOLS), NoLandmarks())
            player = Demonstrator(city, toolbox, blind, rng)
            writer = _Writer(city, chat, tokenizer, rng, config.local_queries)
            searches = []
            for case in cases[: config.searches]:
                searches.append(writer.sequence(case, player.search(case, looks=points > SPARSE_POINTS_PER_M2)))
            decisions = [writer.sequence(case, player.decide(case)) for case in cases]
    return Shard(seed, tuple(writer.pictures), tuple(decisions), tuple(searches))


class _Writer:
    """Turns demonstrations into sequences, keeping their pictures once."""

    def __init__(self, city: City, chat: Chat, tokenizer: Tokenizer, rng: np.random.Generator, local: int) -> None:
        self._city, self._chat, self._rng, self._local = city, chat, rng, local
        self._start = tokenizer.token_to_id("<|im_start|>")
        self._end = tokenizer.token_to_id("<|im_end|>")
        self._assistant = tokenizer.token_to_id("assistant")
        self._visible = [item for item in city.objects if _is_visible(city, item.id)]
        self._overview: int | None = None
        self.pictures: list[Picture] = []

    def sequence(self, case: Expression, demo: Demonstration) -> TokenEpisode:
        """An episode's tokens, pictures and truths."""
        tokens = self._chat.tokens(demo.prompt)
        ids = tokens.ids[:-3].astype(np.int16)  # without the opening of a turn that does not come
        turns = self._turns(ids)
        learned = tuple(span for span, turn in zip(turns, demo.turns, strict=True) if turn.learned)
        pictures = tuple(self._picture(view) for view in demo.views)
        v0 = demo.views[0].transform
        assert v0 is not None
        target = None if case.box is None else v0.box_to_unit(case.box)
        zooms = [number for number, view in enumerate(demo.views) if view.bev and number > 0]
        local: tuple[LocalQuery, ...] = ()
        answers = demo.turns[-1].text.startswith('<answer>{"view_id"')
        if zooms and answers:
            transform = demo.views[zooms[-1]].transform
            assert transform is not None
            local = tuple(local_queries(self._visible, transform, self._local, self._rng))
        answer_view = (zooms[-1] if zooms else 0) if answers else -1
        return TokenEpisode(ids, learned, pictures, target, answer_view, local)

    def _turns(self, ids: NDArray[np.int16]) -> list[tuple[int, int]]:
        """Where each assistant turn begins and ends, its end token included."""
        starts = [int(i) + 3 for i in np.flatnonzero(ids == self._start) if ids[i + 1] == self._assistant]
        ends = np.flatnonzero(ids == self._end)
        return [(start, int(ends[np.searchsorted(ends, start)]) + 1) for start in starts]

    def _picture(self, view: View) -> int:
        if view.id == "v0" and self._overview is not None:
            return self._overview
        height, width = resized_shape(view.image.shape[0], view.image.shape[1], IMAGE_SPEC)
        image = np.asarray(Image.fromarray(view.image).resize((width, height), Image.Resampling.BICUBIC))
        labels = None if view.transform is None else label_cells(self._city.objects, view.transform, width, height)
        self.pictures.append(Picture(image, labels))
        if view.id == "v0":
            self._overview = len(self.pictures) - 1
        return len(self.pictures) - 1


def _is_visible(city: City, number: int) -> bool:
    return number < len(city.visible) and bool(city.visible[number] >= MIN_VISIBLE)


def stream_shards(seeds: Sequence[int], folder: Path, config: ShardConfig, workers: int = 1) -> Iterator[Path]:
    """Paths of shards as they are made, those that exist first; a shard is whole or not there at all."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = []
    for seed in seeds:
        path = folder / f"{config.split}-{seed}.shard"
        if path.exists():
            yield path
        else:
            missing.append((seed, path, config))
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(_write_shard, missing)


def _write_shard(job: tuple[int, Path, ShardConfig]) -> Path:
    seed, path, config = job
    tokenizer = make_nano_tokenizer()
    shard = make_shard(seed, config, make_chat(tokenizer), tokenizer)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        pickle.dump(shard, file, protocol=pickle.HIGHEST_PROTOCOL)
    shutil.move(temporary, path)
    return path


def load_shard(path: Path) -> Shard:
    """Read a shard that this library wrote itself."""
    with path.open("rb") as file:
        shard = pickle.load(file)
    assert isinstance(shard, Shard)
    return shard
