"""What can be evaluated on: the frozen cities of synth-v1, cities of any seed, or a file of queries over any scene."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path

import wayfix
from wayfix.errors import InvalidOption, SuiteChanged
from wayfix.evaluation.queries import QuerySet, read_queries
from wayfix.scene.scene import Scene
from wayfix.synth.city import CityConfig, build_city
from wayfix.synth.expressions import make_expressions
from wayfix.synth.write import QUERIES_FILE, write_city

SYNTH_V1 = "synth-v1"
SYNTH_V1_SEEDS = range(1001, 1041)
SYNTH_V1_PER_CITY = 50
FROZEN_FILE = "synth-v1.json"
SYNTH_PER_CITY = 50
"""Queries a city of the suite `synth`."""


@dataclass(frozen=True)
class SuiteScene:
    """One scene of a suite, made when it is needed."""

    id: str
    count: int | None
    """How many of its queries are run, from the first; None for all."""
    make: Callable[[Path], tuple[Path, Path]]
    """Given a folder to work in, the scene's folder and its file of queries."""
    sha256: str | None = None
    """Of all its queries, where the suite is frozen."""


@dataclass(frozen=True)
class Suite:
    """Scenes in order."""

    name: str
    scenes: tuple[SuiteScene, ...]


def synth_v1(count: int | None) -> Suite:
    """The frozen suite: 40 cities of the test split, 50 queries each; `count` takes the same number of each."""
    frozen = json.loads((files("wayfix.evaluation") / FROZEN_FILE).read_text(encoding="utf-8"))
    shares = _shares(count, len(SYNTH_V1_SEEDS), SYNTH_V1_PER_CITY)
    return Suite(
        SYNTH_V1,
        tuple(
            SuiteScene(_city_id(seed, "test"), share, partial(_make_city, seed, "test", SYNTH_V1_PER_CITY), sha)
            for seed, share, sha in zip(SYNTH_V1_SEEDS, shares, frozen["queries_sha256"], strict=True)
            if share
        ),
    )


def synth(seed: int, count: int | None) -> Suite:
    """Cities of the validation split from `seed` on, 50 queries each; `count` decides how many cities (default 500)."""
    count = 500 if count is None else count
    shares = [min(SYNTH_PER_CITY, count - start) for start in range(0, count, SYNTH_PER_CITY)]
    return Suite(
        "synth",
        tuple(
            SuiteScene(_city_id(seed + i, "val"), share, partial(_make_city, seed + i, "val", SYNTH_PER_CITY))
            for i, share in enumerate(shares)
        ),
    )


def from_file(scene: Path, queries: Path | None, count: int | None) -> Suite:
    """The queries of a file over one scene; the scene's own queries.geojson where no file is given."""
    path = queries or scene / QUERIES_FILE
    if queries is None and not path.is_file():
        raise InvalidOption(f"{scene} holds no {QUERIES_FILE}; say where the queries are with --queries FILE")
    return Suite("file", (SuiteScene(scene.name, count, lambda _: (scene, path)),))


def load(item: SuiteScene, folder: Path) -> tuple[Scene, QuerySet, str]:
    """Make and open a scene; its queries, cut to their share, and the SHA-256 of all of them.

    Raises SuiteChanged where a frozen suite's queries are not what they were.
    """
    scene_path, queries_path = item.make(folder)
    scene = Scene(scene_path)
    queries = read_queries(queries_path, scene)
    sha = queries_sha256(queries)
    if item.sha256 is not None and sha != item.sha256:
        scene.close()
        raise SuiteChanged(
            f"{item.id} is not the city that was frozen: its queries have SHA-256 {sha[:12]}, expected "
            f"{item.sha256[:12]}; figures would not be comparable. Use this release's own libraries, or --suite synth"
        )
    return scene, QuerySet(queries.cases[: item.count], queries.candidates), sha


def queries_sha256(queries: QuerySet) -> str:
    """Of ids, texts, true boxes and candidates, to the centimetre: the same on every machine."""
    lines = [
        json.dumps(
            [c.id, c.query, c.box and [round(v, 2) for v in (c.box.min_x, c.box.min_y, c.box.max_x, c.box.max_y)]]
        )
        for c in queries.cases
    ]
    lines += [json.dumps([round(float(v), 2) for v in box]) for box in queries.candidates]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _make_city(seed: int, split: str, count: int, folder: Path) -> tuple[Path, Path]:
    path = folder / f"{_city_id(seed, split)}-{count}-v{wayfix.__version__}"
    if not (path / "scene.json").exists():
        city = build_city(CityConfig(seed=seed, split=split))
        write_city(path, city, make_expressions(city, count, seed), scene_id=_city_id(seed, split))
    return path, path / QUERIES_FILE


def _city_id(seed: int, split: str) -> str:
    return f"city-{split}-{seed}"


def _shares(count: int | None, scenes: int, most: int) -> list[int]:
    """The same number of queries from each scene, the first ones one more where it does not divide."""
    count = scenes * most if count is None else count
    if not 0 < count <= scenes * most:
        raise InvalidOption(f"--n is 1 to {scenes * most} for this suite, got {count}")
    return [count // scenes + (i < count % scenes) for i in range(scenes)]
