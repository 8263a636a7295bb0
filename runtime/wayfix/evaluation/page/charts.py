"""Curves as SVG: percentages upwards, with intervals, units and numbers of queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wayfix.evaluation.figures import Bin, Figure
from wayfix.evaluation.page.curves import Calibration
from wayfix.evaluation.tables import interval, percent
from wayfix.html import escaped

_WIDTH, _HEIGHT = 420, 262
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 14, 52
_CAP = 4


def line_chart(points: Sequence[tuple[float, Figure]], x_title: str, y_title: str) -> str:
    """A line over x of 0 to 1, its interval as a band."""
    shown = [(x, f) for x, f in points if f.value is not None]
    if not shown:
        return _nothing()
    upper = [f"{_x(x)},{_y(f.high)}" for x, f in shown]
    lower = [f"{_x(x)},{_y(f.low)}" for x, f in reversed(shown)]
    parts = [*_frame(x_title, y_title), *_x_grid()]
    parts.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
    parts.append(f'<polyline class="line" points="{" ".join(f"{_x(x)},{_y(f.value)}" for x, f in shown)}"/>')
    parts += [_dot(_x(x), f, f"{x_title} {x:g}") for x, f in shown]
    return _svg(parts, f"{y_title} by {x_title}")


def bin_chart(bins: Sequence[Bin], x_title: str, y_title: str) -> str:
    """A point with error bars for each bin, its number of queries below."""
    if not any(b.figure.n for b in bins):
        return _nothing()
    parts = _frame(x_title, y_title)
    step = (_WIDTH - _LEFT - _RIGHT) / len(bins)
    for number, entry in enumerate(bins):
        x = round(_LEFT + (number + 0.5) * step, 1)
        parts += [_label(x, 15, entry.name), _label(x, 28, f"n {entry.figure.n}", "soft")]
        parts += _error_bar(x, entry.figure)
        parts.append(_dot(x, entry.figure, entry.name))
    return _svg(parts, f"{y_title} by {x_title}")


def calibration_chart(found: Calibration) -> str:
    """Confidence against the share of right answers: on the diagonal the two agree."""
    if not found.n:
        return _nothing()
    x_title, y_title = "confidence", "right answers"
    parts = [*_frame(x_title, y_title), *_x_grid()]
    parts.append(f'<line class="even" x1="{_x(0)}" y1="{_y(0)}" x2="{_x(1)}" y2="{_y(1)}"/>')
    most = max(f.n for _, f in found.points)
    for x, f in found.points:
        height = round(0.25 * (_y(0) - _y(1)) * f.n / most, 1)
        parts.append(f'<rect class="count" x="{_x(x) - 8:.1f}" y="{_y(0) - height:.1f}" width="16" height="{height}"/>')
    for x, f in found.points:
        parts += _error_bar(_x(x), f)
        parts.append(_dot(_x(x), f, f"confidence {x:.2f}"))
    return _svg(parts, f"{y_title} by {x_title}")


def _svg(parts: Sequence[str], label: str) -> str:
    head = f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escaped(label)}">'
    return "\n".join((head, *parts, "</svg>"))


def _nothing() -> str:
    return '<p class="nothing">nothing to measure</p>'


def _frame(x_title: str, y_title: str) -> list[str]:
    """Horizontal grid with percentages, and both titles."""
    parts = []
    for value in (0, 0.25, 0.5, 0.75, 1):
        y = _y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{100 * value:g}</text>')
    middle = (_y(0) + _y(1)) / 2
    parts.append(
        f'<text class="axis" transform="translate(11 {middle:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escaped(y_title)}, %</text>"
    )
    x = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="axis" x="{x:g}" y="{_HEIGHT - 6}" text-anchor="middle">{escaped(x_title)}</text>')
    return parts


def _x_grid() -> Iterator[str]:
    for value in (0, 0.2, 0.4, 0.6, 0.8, 1):
        x = _x(value)
        yield f'<line class="tick" x1="{x}" y1="{_y(0)}" x2="{x}" y2="{_y(0) + 4}"/>'
        yield _label(x, 17, f"{value:g}")


def _label(x: float, below: float, text: str, style: str = "") -> str:
    return f'<text class="{style}" x="{x}" y="{_y(0) + below:.0f}" text-anchor="middle">{escaped(text)}</text>'


def _error_bar(x: float, figure: Figure) -> list[str]:
    if figure.low is None or figure.high is None:
        return []
    low, high = _y(figure.low), _y(figure.high)
    ends = f"M{x - _CAP:.1f} {low}h{2 * _CAP}M{x - _CAP:.1f} {high}h{2 * _CAP}"
    return [f'<path class="bar" d="M{x} {low}V{high}{ends}"/>']


def _dot(x: float, figure: Figure, name: str) -> str:
    if figure.value is None:
        return ""
    said = f"{name}: {percent(figure.value)} % ({interval(figure)}), n {figure.n}"
    return f'<circle class="dot" cx="{x}" cy="{_y(figure.value)}" r="3.5"><title>{escaped(said)}</title></circle>'


def _x(value: float) -> float:
    return round(_LEFT + value * (_WIDTH - _LEFT - _RIGHT), 1)


def _y(value: float | None) -> float:
    return round(_HEIGHT - _BOTTOM - (value or 0.0) * (_HEIGHT - _TOP - _BOTTOM), 1)
