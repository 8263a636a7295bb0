"""Queries with their truths over cities on disk, for training by reward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wayfix.evaluation.queries import read_queries
from wayfix.scene.scene import Scene
from wayfix.synth.city import CityConfig, build_city
from wayfix.synth.expressions import make_expressions
from wayfix.synth.write import QUERIES_FILE, write_city
from wayfix_train.environment import Task


def make_tasks(folder: Path, seeds: Sequence[int], split: str, count: int) -> list[Task]:
    """Up to `count` tasks a city, which is made where it is not there yet. Other data sets are lists of Task too."""
    tasks = []
    for seed in seeds:
        path = folder / f"city-{split}-{seed}-{count}"
        if not (path / "scene.json").exists():
            city = build_city(CityConfig(seed=seed, split=split))
            write_city(path, city, make_expressions(city, count, seed))
        with Scene(path) as scene:
            cases = read_queries(path / QUERIES_FILE, scene).cases
        tasks += [Task(path, case.query, case.box) for case in cases]
    return tasks
