"""Writes an evaluation as one HTML page that needs no other file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from wayfix.evaluation.page.charts import bin_chart, calibration_chart, line_chart
from wayfix.evaluation.page.classes import CLASSES, class_of
from wayfix.evaluation.page.curves import calibration, hit_by_iou, hit_by_turns
from wayfix.evaluation.page.sections import head, tables
from wayfix.evaluation.report import CLEAN, EvalReport
from wayfix.evaluation.trajectory import Trajectory
from wayfix.html import check_path, embedded_json, escaped, fill, package_text, write_html

_PACKAGE = "wayfix.evaluation.page"
_SEARCHES = "{{searches}}"
"""Where the template takes the trajectories, which may be too many to be joined into one text."""


def write_page(report: EvalReport, trajectories: Iterable[Trajectory], path: Path) -> None:
    """Write the page of a report; a query with a trajectory can be looked at turn by turn.

    Raises InvalidOption for a path that cannot be, StorageFull or StorageFailed where the page cannot be written.
    """
    check_path(path)
    write_html(path, _pieces(report, trajectories))


def _pieces(report: EvalReport, trajectories: Iterable[Trajectory]) -> Iterator[str]:
    before, after = package_text(_PACKAGE, "template.html").split(_SEARCHES)
    parts = {
        "style": package_text(_PACKAGE, "style.css"),
        "head": head(report),
        "tables": tables(report),
        "curves": _curves(report),
        "list": package_text(_PACKAGE, "list.js"),
        "query": package_text(_PACKAGE, "query.js"),
        "boxes": package_text(_PACKAGE, "boxes.js"),
        "data": embedded_json(_list_data(report)),
    }
    yield fill(before, parts)
    yield from _searches(report, trajectories)
    yield fill(after, parts)


def _list_data(report: EvalReport) -> dict[str, object]:
    """All that is listed of each query; its row's number leads to its trajectory."""
    rows = [json.loads(o.model_dump_json()) | {"class": class_of(o)} for o in report.outcomes]
    conditions = dict.fromkeys([*report.config.conditions, *(o.condition for o in report.outcomes)])
    return {
        "title": f"{report.config.policy} on {report.config.suite}",
        "classes": [{"key": key, "title": title, "note": note} for key, (title, note) in CLASSES.items()],
        "conditions": list(conditions),
        "rows": rows,
    }


def _searches(report: EvalReport, trajectories: Iterable[Trajectory]) -> Iterator[str]:
    """One element per trajectory and per picture, which a browser keeps as text until it is asked for.

    Equal pictures, such as the overview of a scene, are there once.
    """
    rows = {(o.scene, o.id, o.condition): number for number, o in enumerate(report.outcomes)}
    numbers: dict[bytes, int] = {}
    for trajectory in trajectories:
        row = rows.pop((trajectory.trace.scene, trajectory.id, trajectory.condition), None)
        if row is None:
            continue
        pictures = {}
        for view, picture in trajectory.pictures.items():
            digest = hashlib.sha256(picture.encode()).digest()
            if digest not in numbers:
                numbers[digest] = len(numbers)
                yield _kept(f"picture-{numbers[digest]}", picture)
            pictures[view] = numbers[digest]
        yield _kept(f"search-{row}", {"trace": json.loads(trajectory.trace.model_dump_json()), "pictures": pictures})


def _kept(name: str, value: object) -> str:
    return f'<script type="application/json" id="{name}">{embedded_json(value)}</script>\n'


def _curves(report: EvalReport) -> str:
    clean = [o for o in report.outcomes if o.condition == CLEAN]
    by_iou, by_turns, confidence = hit_by_iou(clean), hit_by_turns(clean), calibration(clean)
    ranked = by_iou[0][1].n if by_iou else 0
    error = "-" if confidence.error is None else f"{100 * confidence.error:.1f} %"
    charts = [
        ("Hit@1 by required IoU", f"n {ranked}", line_chart(by_iou, "required IoU", "Hit@1")),
        ("Hit@1 by turns", "searches that took so many turns", bin_chart(by_turns, "turns", "Hit@1")),
        (
            "Regional success by distance",
            "some zoom held the target's centre",
            bin_chart(report.regional, "distance from target to landmark", "regional success"),
        ),
        (
            "Local success by distractors",
            "Hit@1 given regional success",
            bin_chart(report.local, "objects of the same class within 50 m", "local success"),
        ),
        (
            "Calibration",
            f"expected calibration error {error} · n {confidence.n}; bars: queries of each bin",
            calibration_chart(confidence),
        ),
    ]
    return "\n".join(
        f"<figure><figcaption><h3>{escaped(title)}</h3><p>{escaped(note)}</p></figcaption>{chart}</figure>"
        for title, note, chart in charts
    )
