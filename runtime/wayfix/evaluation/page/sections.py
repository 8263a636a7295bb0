"""The parts of a page that are plain HTML: its head, and every table of figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from wayfix.evaluation.figures import RANKS, Figure
from wayfix.evaluation.report import EvalReport
from wayfix.evaluation.tables import Show, interval, percent, plain
from wayfix.html import escaped

_RULES = {
    "": "BEV IoU",
    "_positive": "only boxes that overlap",
    "_ciou": "CIoU",
}
_PARTS: dict[str, dict[str, str]] = {
    "Hit@1 with a box that fits": {
        "hit@1_iou>=0.25": "IoU of at least 0.25",
        "hit@1_iou>=0.5": "IoU of at least 0.5",
    },
    "Boxes": {
        "iou_2d": "2D IoU, %",
        "iou_3d": "3D IoU, %",
        "point_f1": "point F1, %",
        "overlapped_mean": "candidates overlapped, mean",
        "overlapped_median": "candidates overlapped, median",
        "overlapped_iou>=0.25_mean": "with IoU of at least 0.25, mean",
        "overlapped_iou>=0.25_median": "with IoU of at least 0.25, median",
        "area_ratio_median": "area of the answer / target, median",
        "area_ratio_p75": "area of the answer / target, 75th percentile",
        "area_ratio_p90": "area of the answer / target, 90th percentile",
    },
    "Search and “not found”": {
        "right": "right: a hit, or a right “not found”",
        "regional_success": "regional success: some zoom held the target's centre",
        "local_success": "local success: Hit@1 given that",
        "not_found_precision": "“not found”: precision",
        "not_found_recall": "“not found”: recall",
    },
}
_EFFORT = {
    "turns": "turns",
    "tool_calls": "tool calls",
    "invalid_calls": "invalid calls",
    "prompt_tokens": "prompt tokens",
    "completion_tokens": "completion tokens",
    "partial": "partial answers, %",
    "failed": "searches without a final answer, %",
}
_NUMBERS = ("overlapped", "area_ratio")
"""Figures whose names begin so are numbers, all others of accuracy are fractions."""

_SHARES_OF_EFFORT = ("partial", "failed")


def head(report: EvalReport) -> str:
    """What was run, the most asked figures, and what a reader should keep in mind."""
    config = report.config
    tiles = [
        ("Hit@1", report.accuracy.get("hit@1"), percent, " %"),
        ("right", report.accuracy.get("right"), percent, " %"),
        ("2D IoU", report.accuracy.get("iou_2d"), percent, " %"),
        ("turns", report.effort.get("turns"), plain, ""),
    ]
    facts = {
        "Suite": config.suite,
        "Policy": " · ".join(filter(None, (config.policy, config.policy_detail))),
        "Queries": f"{config.queries} in {config.scenes} {'scene' if config.scenes == 1 else 'scenes'}",
        "Seed": config.seed,
        "Workflow": config.workflow,
        "Turns": f"at most {config.turns}",
        "Tools": ", ".join(config.tools) or "none",
        "Landmarks": ", ".join(config.conditions),
        "Time allowed": "no limit" if config.budget_s is None else f"{config.budget_s:g} s a query",
    }
    remarks = "".join(f'<li dir="auto">{escaped(remark)}</li>' for remark in report.remarks)
    return (
        f"<h1><bdi>{escaped(config.policy)}</bdi> on <bdi>{escaped(config.suite)}</bdi></h1>\n"
        f'<div id="tiles">{"".join(_tile(*tile) for tile in tiles)}{_time_tile(report)}</div>\n'
        f"{_facts(facts)}\n"
        + (f'<ul id="remarks">{remarks}</ul>\n' if remarks else "")
        + f"<details><summary>How it was measured</summary>{_facts(dict(_environment(report)))}</details>"
    )


def tables(report: EvalReport) -> str:
    """Every table, each in a box of its own."""
    parts = [
        _box(
            "Hit@k",
            _hits(report.accuracy),
            "the target is among the k candidates the answer fits best; ties count against it",
        )
    ]
    shown = {name for names in _PARTS.values() for name in names} | set(_hit_names())
    for title, names in _PARTS.items():
        parts.append(_box(title, _figures(report.accuracy, names, _accuracy_show)))
    others = {name: name for name in report.accuracy if name not in shown}
    if others:
        parts.append(_box("Other figures", _figures(report.accuracy, others, _accuracy_show)))
    effort = {name: _EFFORT.get(name, name) for name in report.effort}
    parts.append(_box("Effort, mean of a query", _figures(report.effort, effort, _effort_show)))
    if report.by_kind:
        parts.append(_box("By kind of query", _kinds(report)))
    if any(row.hit1.n for row in report.landmarks):
        parts.append(_box("Landmarks", _landmarks(report), "Hit@1 of queries that name one, paired by query"))
    parts.append(_box("Time, ms", _times(report), "of a query; of a tool, where it was used"))
    return "\n".join(parts)


def _hit_names() -> Iterator[str]:
    return (f"hit@{k}{rule}" for rule in RANKS for k in (1, 3, 5))


def _tile(name: str, figure: Figure | None, show: Show, unit: str) -> str:
    if figure is None or figure.value is None:
        return f"<div><b>-</b><span>{name}</span><small>nothing to measure</small></div>"
    said = f"{interval(figure, show)} · n {figure.n}"
    return f"<div><b>{show(figure.value)}{unit}</b><span>{name}</span><small>{said}</small></div>"


def _time_tile(report: EvalReport) -> str:
    ms = report.times.get("query")
    if ms is None:
        return ""
    return (
        f"<div><b>{_milliseconds(ms['p50_ms'])} ms</b><span>median time</span>"
        f"<small>99 % within {_milliseconds(ms['p99_ms'])} · n {ms['n']:.0f}</small></div>"
    )


def _environment(report: EvalReport) -> Iterator[tuple[str, Any]]:
    for name, value in {**report.machine, **report.versions}.items():
        yield name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list) else value
    if report.commit:
        yield "commit", report.commit
    yield "queries' SHA-256", report.config.suite_sha256 or "-"
    yield "intervals", "95 %, from resampling whole scenes; of one scene, its queries"


def _facts(facts: dict[str, Any]) -> str:
    rows = (f'<div><dt>{escaped(k)}</dt><dd dir="auto">{escaped(v)}</dd></div>' for k, v in facts.items())
    return f"<dl>{''.join(rows)}</dl>"


def _box(title: str, table: str, note: str = "") -> str:
    said = f"<p>{escaped(note)}</p>" if note else ""
    return f'<section><h3>{escaped(title)}</h3>{said}<div class="wide">{table}</div></section>'


def _table(header: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A table whose first column are texts; the cells are HTML."""
    top = "".join(f'<th scope="col">{escaped(text)}</th>' for text in header)
    body = ""
    for name, cells in rows:
        title = f'<th scope="row"><bdi>{escaped(name)}</bdi></th>'
        body += f"<tr>{title}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>\n"
    return f"<table><thead><tr>{top}</tr></thead><tbody>\n{body}</tbody></table>"


def _cell(figure: Figure | None, show: Show = percent) -> str:
    """A figure above its interval."""
    if figure is None or figure.value is None:
        return "-"
    return f"{show(figure.value)}<small>{interval(figure, show)}</small>"


def _count(figure: Figure | None) -> str:
    return "0" if figure is None else str(figure.n)


def _hits(figures: dict[str, Figure]) -> str:
    rows = []
    for rule in RANKS:
        found = [figures.get(f"hit@{k}{rule}") for k in (1, 3, 5)]
        rows.append((_RULES.get(rule, rule), [*map(_cell, found), _count(found[0])]))
    return _table(("matched by", "Hit@1, %", "Hit@3, %", "Hit@5, %", "n"), rows)


def _figures(figures: dict[str, Figure], names: dict[str, str], show: Any) -> str:
    rows = []
    for name, title in names.items():
        figure, way = figures.get(name), show(name)
        value = "-" if figure is None else way(figure.value)
        rows.append((title, [value, interval(figure, way) if figure else "", _count(figure)]))
    return _table(("", "value", "95 %", "n"), rows)


def _accuracy_show(name: str) -> Show:
    return plain if name.startswith(_NUMBERS) else percent


def _effort_show(name: str) -> Show:
    return percent if name in _SHARES_OF_EFFORT else plain


def _kinds(report: EvalReport) -> str:
    names = {"right": "right, %", "hit@1": "Hit@1, %", "iou_2d": "2D IoU, %"}
    rows = [
        (kind, [*(_cell(figures.get(name)) for name in names), _count(figures.get("right"))])
        for kind, figures in report.by_kind.items()
    ]
    return _table(("kind", *names.values(), "n"), rows)


def _landmarks(report: EvalReport) -> str:
    rows = [
        (row.condition, [_cell(row.hit1), _cell(row.less_than_clean), _count(row.hit1)]) for row in report.landmarks
    ]
    rows.append(("query names none", [_cell(report.without_landmark), "-", _count(report.without_landmark)]))
    return _table(("landmarks", "Hit@1, %", "less than clean", "n"), rows)


def _times(report: EvalReport) -> str:
    rows = [
        (name.replace("_", " "), [*(_milliseconds(ms[f"p{p}_ms"]) for p in (50, 95, 99)), f"{ms['n']:.0f}"])
        for name, ms in report.times.items()
    ]
    return _table(("part", "p50", "p95", "p99", "n"), rows)


def _milliseconds(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"
