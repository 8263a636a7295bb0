"""Curves of a GRPO run, after Figure 7 of Urbex: reward, turns, tools and validation over steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from wayfix.errors import InvalidOption

WINDOW = 10
"""Steps a drawn value is the mean of."""
_PANELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("reward", ("reward/total", "reward/iou", "reward/distance", "reward/not_found")),
    ("shaping and costs", ("reward/step", "reward/zoom", "reward/oblique", "reward/invalid")),
    ("right answers and IoU", ("right", "iou", "answered")),
    ("calls a search", ("landmark_query", "zoom_in", "oblique_render", "invalid")),
    ("turns", ("turns",)),
    ("optimization", ("kl", "loss")),
)


def draw_curves(out: Path) -> Path:
    """Draw OUT/curves.png from OUT/log.jsonl. Raises InvalidOption where there is no log."""
    from matplotlib.figure import Figure

    log = out / "log.jsonl"
    if not log.is_file():
        raise InvalidOption(f"{out} holds no log.jsonl; is it the --out of a run of wayfix train grpo?")
    # A resumed run writes the steps since its last save again.
    lines = {line["step"]: line for line in map(json.loads, log.read_text(encoding="utf-8").splitlines())}
    steps = sorted(lines)
    figure = Figure(figsize=(13, 7), layout="constrained")
    for number, (title, names) in enumerate(_PANELS, 1):
        axes = figure.add_subplot(2, 3, number)
        for name in names:
            values = [lines[step].get(name) for step in steps]
            if all(value is not None for value in values):
                axes.plot(steps, _smooth(values), label=name.removeprefix("reward/"), linewidth=1.4)
        _draw_validation(axes, lines, names)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step", fontsize=9)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8)
    path = out / "curves.png"
    figure.savefig(path, dpi=110)
    return path


def _draw_validation(axes: Any, lines: dict[int, dict[str, Any]], names: tuple[str, ...]) -> None:
    """Held-out greedy searches as dots."""
    told = [step for step in sorted(lines) if "validation" in lines[step]]
    for name in names:
        if name in ("right", "iou") and told:
            axes.plot(
                told, [lines[s]["validation"][name] for s in told], "o", label=f"{name}, validation", markersize=4
            )


def _smooth(values: list[Any]) -> list[float]:
    return [float(np.mean(values[max(0, i - WINDOW + 1) : i + 1])) for i in range(len(values))]
