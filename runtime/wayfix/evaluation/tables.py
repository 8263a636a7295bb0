"""A report as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wayfix.evaluation.figures import Figure
from wayfix.evaluation.report import EvalReport

Show = Callable[["float | None"], str]
_COUNTS = ("overlapped", "area_ratio")


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def percent(value: float | None) -> str:
    """A fraction as a percentage with one decimal."""
    return "-" if value is None else f"{100 * value:.1f}"


def plain(value: float | None) -> str:
    """A number with two decimals."""
    return "-" if value is None else f"{value:.2f}"


def interval(figure: Figure, show: Show = percent) -> str:
    """The figure's 95 % interval."""
    return "" if figure.low is None else f"{show(figure.low)} to {show(figure.high)}"


def print_report(report: EvalReport) -> None:
    """All tables of a report."""
    c = report.config
    detail = f" ({c.policy_detail})" if c.policy_detail else ""
    print(
        f"{c.policy}{detail} on {c.suite}: {c.queries} queries, {c.scenes} scenes, seed {c.seed}, "
        f"workflow {c.workflow}, {c.turns} turns, tools {', '.join(c.tools) or 'none'}"
    )
    print("fractions in percent, with 95 % intervals over resampled scenes\n")
    print(_accuracy(report))
    for title, table in _tables(report):
        print(f"\n{title}\n{table}")
    for remark in report.remarks:
        print(f"\nnote: {remark}")


def _accuracy(report: EvalReport) -> str:
    rows = [("accuracy", "value", "95 %", "n")]
    for name, f in report.accuracy.items():
        show = plain if name.startswith(_COUNTS) else percent
        rows.append((name, show(f.value), interval(f, show), str(f.n)))
    for name, f in report.effort.items():
        show = percent if name in ("partial", "failed") else plain
        rows.append((name, show(f.value), interval(f, show), str(f.n)))
    return aligned(rows)


def _tables(report: EvalReport) -> list[tuple[str, str]]:
    tables = []
    if report.by_kind:
        rows = [("kind", "n", "right", "hit@1", "95 %", "iou_2d")]
        for kind, figures in report.by_kind.items():
            right, hit, iou = figures["right"], figures["hit@1"], figures["iou_2d"]
            rows.append(
                (kind, str(right.n), percent(right.value), percent(hit.value), interval(hit), percent(iou.value))
            )
        tables.append(("by kind of query", aligned(rows)))
    for title, bins in (
        ("regional success by distance to the landmark", report.regional),
        ("local success by same-class objects within 50 m", report.local),
    ):
        if any(b.figure.n for b in bins):
            shown = [(b.name, percent(b.figure.value), interval(b.figure), str(b.figure.n)) for b in bins]
            tables.append((title, aligned([("bin", "success", "95 %", "n"), *shown])))
    if any(row.hit1.n for row in report.landmarks):
        tables.append(("hit@1 of queries that name a landmark", _landmarks(report)))
    times: list[tuple[str, ...]] = [("time, ms", "p50", "p95", "p99", "n")]
    for name, ms in report.times.items():
        times.append((name, *(f"{ms[f'p{p}_ms']:.1f}" for p in (50, 95, 99)), f"{ms['n']:.0f}"))
    tables.append(("time per query, and per tool where it was used", aligned(times)))
    return tables


def _landmarks(report: EvalReport) -> str:
    rows = [("landmarks", "hit@1", "95 %", "less than clean", "95 %", "n")]
    for entry in report.landmarks:
        less = entry.less_than_clean
        drop, range_ = (percent(less.value), interval(less)) if less else ("", "")
        rows.append((entry.condition, percent(entry.hit1.value), interval(entry.hit1), drop, range_, str(entry.hit1.n)))
    none = report.without_landmark
    rows.append(("query names none", percent(none.value), interval(none), "", "", str(none.n)))
    return aligned(rows)
