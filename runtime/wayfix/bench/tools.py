"""Latency of the three tools as an agent calls them, warm and cold, on a scene the size of a town centre.

Warm: the files are in the page cache and every tile has passed its checksum once. Cold: a scene just opened, its files
dropped from the page cache before every call; on a RAM disk nothing can be dropped, and cold figures mean little.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, get_args

import numpy as np
from tqdm import tqdm

from wayfix.bench.city_scene import Recipe, bench_scene
from wayfix.bench.report import environment, summary
from wayfix.errors import InvalidOption, SceneCorrupt
from wayfix.geo.boxes import WorldBox
from wayfix.geo.transforms import ViewTransform
from wayfix.scene.landmark_index import LandmarkIndex
from wayfix.scene.scene import Scene
from wayfix.synth.names import SYLLABLES
from wayfix.tools.arguments import Direction, LandmarkQuery, ObliqueRender, ToolCall, ZoomIn
from wayfix.tools.toolbox import Toolbox
from wayfix.views.scene_views import CacheBudget, SceneViews
from wayfix.views.view import ImageSizes, View

ROUNDS = 3
_WARM_UP = 3  # calls of each tool before any is timed
_QUERY_KINDS = ("exact", "other case", "accents dropped", "one typo", "two typos", "missing name")
_SIZES = ImageSizes()
_GOLDEN = (5**0.5 - 1) / 2

_P = ParamSpec("_P")

Calls = dict[str, list[ToolCall]]
Rounds = dict[str, list[list[float]]]
"""Times in milliseconds: case -> rounds -> calls."""


@dataclass(frozen=True)
class ToolsConfig:
    """What is called, and on which scene."""

    recipe: Recipe = field(default_factory=Recipe)
    zoom_px: tuple[int, int] = (400, 2400)
    """Least and greatest side of the square crops, pixels of the photo: what a policy narrows a search down by."""
    candidate_m: tuple[float, float] = (30.0, 60.0)
    """Least and greatest width and height of an oblique's candidate box, metres; the tool's margin doubles them."""
    cold_calls: int = 20
    seed: int = 1


def bench_tools(repeats: int, data: Path | None, quiet: bool, config: ToolsConfig | None = None) -> dict[str, Any]:
    """Measure the tools with `repeats` calls a case and return the report (see bench.report).

    The scene is made in `data` and kept there, or reused from there; without `data` it is temporary. Raises
    InvalidOption for fewer than one call, SceneExists where `data` holds something else.
    """
    if repeats < 1:
        raise InvalidOption(f"--repeats is at least 1, got {repeats}")
    config = config or ToolsConfig()
    around = environment()
    with bench_scene(config.recipe, data, quiet) as folder, tempfile.TemporaryDirectory(prefix="wayfix-bench-") as tmp:
        total = 5 * repeats + 2 * config.cold_calls + ROUNDS
        with tqdm(total=total, desc="calls", leave=False, disable=True if quiet else None) as bar:
            calls = _make_calls(config, folder, repeats)
            rounds = _warm_rounds(folder, calls, Path(tmp), bar)
            cold = _make_calls(config, folder, config.cold_calls, config.seed + 1)
            cold_ms = {case: _cold_times(folder, cold[case], Path(tmp), bar) for case in ("zoom", "oblique")}
    return {
        "zoom": {**summary(rounds["zoom"]), "cold_p50_ms": _median([cold_ms["zoom"]])},
        "landmark": {**summary(rounds["landmark"]), "build_ms": _median(rounds["build"])},
        "oblique": {**summary(rounds["oblique"]), "cold_p50_ms": _median([cold_ms["oblique"]])},
        "oblique_cached": {**summary(rounds["oblique_cached"]), "disk_p50_ms": _median(rounds["disk"])},
        **around,
        "config": _described(config, repeats),
    }


def _median(rounds: Sequence[Sequence[float]]) -> float:
    return summary(rounds)["p50_ms"]


def _described(config: ToolsConfig, repeats: int) -> dict[str, Any]:
    recipe = config.recipe
    return {
        "repeats": repeats,
        "rounds": ROUNDS,
        "scene": {
            "photo_px": [round(v / recipe.gsd_m) for v in (recipe.extent.width, recipe.extent.height)],
            "size_m": [recipe.extent.width, recipe.extent.height],
            "points_per_m2": round(recipe.points / recipe.extent.area, 2),
            **asdict(recipe),
        },
        "zoom": f"{_SIZES.zoom} px of square crops, sides uniform in {config.zoom_px} photo pixels",
        "landmark": f"in equal parts: {', '.join(_QUERY_KINDS)}",
        "oblique": f"{_SIZES.oblique} px, new regions around boxes of {config.candidate_m} m, four directions in turn; "
        "includes writing the cache",
        "oblique_cached": "the same regions again from memory; disk: from files after the memory was emptied",
        "warm": "files in the page cache, every tile's checksum already verified",
        "cold": f"median of {config.cold_calls} calls, each on a scene just opened, files dropped from the page cache",
        **{key: value for key, value in asdict(config).items() if key != "recipe"},
    }


def _make_calls(config: ToolsConfig, folder: Path, count: int, seed: int | None = None) -> Calls:
    """The calls of each case, all on view v0."""
    rng = np.random.default_rng(config.seed if seed is None else seed)
    extent = config.recipe.extent
    view = ViewTransform.north_up(extent, 1, 1)
    # Golden-ratio steps are spread evenly over the range in every round, so that rounds can be compared.
    least, most = config.zoom_px
    sides = (least + (most - least) * (np.arange(1, count + 1) * _GOLDEN % 1.0)) * config.recipe.gsd_m
    candidates = rng.uniform(*config.candidate_m, (count, 2))
    # A region is its candidate box grown by half the box's longer side, all of it inside the scene.
    margins = candidates.max(axis=1) / 2
    directions = get_args(Direction)
    with Scene(folder) as scene:
        names = [name for mark in scene.landmarks for name in (mark.name, *mark.aliases)]
    return {
        "zoom": [ZoomIn(source_view_id="v0", crop_box=_unit_box(rng, view, extent, side, side, 0.0)) for side in sides],
        "landmark": [
            LandmarkQuery(source_view_id="v0", landmark_name=name) for name in make_queries(rng, names, count)
        ],
        "oblique": [
            ObliqueRender(
                source_view_id="v0",
                candidate_box=_unit_box(rng, view, extent, width, height, margin),
                direction=directions[number % len(directions)],
            )
            for number, ((width, height), margin) in enumerate(zip(candidates, margins, strict=True))
        ],
    }


def _unit_box(
    rng: np.random.Generator, view: ViewTransform, extent: WorldBox, width: float, height: float, margin: float
) -> list[int]:
    x = rng.uniform(extent.min_x + margin, extent.max_x - margin - width)
    y = rng.uniform(extent.min_y + margin, extent.max_y - margin - height)
    box = view.box_to_unit(WorldBox(x, y, x + width, y + height))
    assert box is not None, "it lies inside the scene"
    return list(box)


def make_queries(rng: np.random.Generator, names: Sequence[str], count: int) -> list[str]:
    """Names as people type them: the kinds of _QUERY_KINDS in turn."""
    accented = [name for name in names if _plain(name) != name] or list(names)
    queries = []
    for number in range(count):
        kind = _QUERY_KINDS[number % len(_QUERY_KINDS)]
        source = accented if kind == "accents dropped" else names
        name = source[int(rng.integers(len(source)))]
        if kind == "other case":
            name = name.upper() if rng.random() < 0.5 else name.lower()
        elif kind == "accents dropped":
            name = _plain(name)
        elif kind in ("one typo", "two typos"):
            for _ in range(1 if kind == "one typo" else 2):
                name = _mistyped(rng, name)
        elif kind == "missing name":
            # The stem is of other syllables than any name's, the last word a common one.
            stem = "".join(SYLLABLES["val"][rng.integers(len(SYLLABLES["val"]))] for _ in range(3))
            name = f"{stem.capitalize()} {name.split()[-1]}"
        queries.append(name)
    return queries


def _plain(name: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))


def _mistyped(rng: np.random.Generator, name: str) -> str:
    """A letter wrong, left out, added, or two swapped."""
    at = int(rng.integers(len(name) - 1))
    letter = chr(int(rng.integers(ord("a"), ord("z") + 1)))
    pair = name[at + 1] + name[at]
    rests = (letter + name[at + 1 :], name[at + 1 :], letter + name[at:], pair + name[at + 2 :])
    return name[:at] + rests[int(rng.integers(len(rests)))]


def _warm_rounds(folder: Path, calls: Calls, cache: Path, bar: tqdm) -> Rounds:
    """All cases in turn, ROUNDS times, each time on another part of the calls."""
    count = len(calls["oblique"])
    # Room for every image of the run: what is measured is a hit.
    budget = CacheBudget(memory_bytes=max(CacheBudget.memory_bytes, count * 3 * _SIZES.oblique**2))
    rounds: Rounds = {case: [] for case in ("zoom", "landmark", "oblique", "oblique_cached", "disk", "build")}
    with Scene(folder) as scene:
        _verify_tiles(scene)
        known = _overview(scene)
        toolbox = Toolbox(SceneViews(scene, budget, cache / "warm"), _SIZES)
        _warm_up(scene, calls, known, cache / "warm-up")
        for part in np.array_split(np.arange(count), ROUNDS):
            chosen = {case: [calls[case][i] for i in part] for case in calls}
            for case in ("zoom", "landmark", "oblique"):
                rounds[case].append(_times(toolbox, chosen[case], known, bar))
            rounds["oblique_cached"].append(_times(toolbox, chosen["oblique"], known, bar))
            emptied = Toolbox(SceneViews(scene, budget, cache / "warm"), _SIZES)
            rounds["disk"].append(_times(emptied, chosen["oblique"], known, bar))
            rounds["build"].append([_timed(LandmarkIndex, scene.landmarks)])
            bar.update()
    return rounds


def _verify_tiles(scene: Scene) -> None:
    """Read every tile of the photo and the points once, so that all are in the page cache and past their check."""
    for number, level in enumerate(scene.bev.levels):
        for row in range(level.rows):
            for column in range(level.columns):
                scene.bev.tile_bytes(number, row, column)
    assert scene.points is not None, "a benchmark scene has points"
    for problem in scene.points.check():
        raise SceneCorrupt(f"the benchmark's scene is damaged, delete {scene.folder}: {problem}")


def _warm_up(scene: Scene, calls: Calls, known: dict[str, View], cache: Path) -> None:
    """Compile kernels, build indexes, fill caches of libraries."""
    toolbox = Toolbox(SceneViews(scene, cache_folder=cache), _SIZES)
    for made in calls.values():
        for call in (*made[:_WARM_UP], *made[:_WARM_UP]):
            toolbox.run(call, known)


def _cold_times(folder: Path, calls: Sequence[ToolCall], cache: Path, bar: tqdm) -> list[float]:
    """Milliseconds of each call as the first one after opening the scene, with nothing of it in memory."""
    with Scene(folder) as scene:
        known = _overview(scene)
        paths = [folder / entry.path for layer in scene.manifest.layers.values() for entry in layer.files]
    del scene
    times: list[float] = []
    for call in calls:
        gc.collect()  # a scene still mapped would keep its pages
        for path in paths:
            _drop_from_page_cache(path)
        with Scene(folder) as scene:
            toolbox = Toolbox(SceneViews(scene, cache_folder=cache / f"cold-{len(times)}"), _SIZES)
            times += _times(toolbox, [call], known, bar)
        del scene, toolbox
    return times


def _drop_from_page_cache(path: Path) -> None:
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _overview(scene: Scene) -> dict[str, View]:
    """View v0 without the reader of heights, which would keep the scene alive."""
    image, transform = SceneViews(scene).overview(_SIZES.overview)
    return {"v0": View("v0", image, transform.extent, transform)}


def _times(toolbox: Toolbox, calls: Sequence[ToolCall], known: dict[str, View], bar: tqdm) -> list[float]:
    times = []
    for call in calls:
        times.append(_timed(toolbox.run, call, known))
        bar.update()
    return times


def _timed(action: Callable[_P, object], *args: _P.args, **kwargs: _P.kwargs) -> float:
    """Milliseconds an action takes."""
    begin = time.perf_counter_ns()
    action(*args, **kwargs)
    return (time.perf_counter_ns() - begin) / 1e6
