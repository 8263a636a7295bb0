"""A benchmark's report: its figures, where they were measured, and how they are shown.

A report is the dictionary that `--json` prints: every entry with a `p50_ms` is a case, the others say how it was made.
"""

from __future__ import annotations

import html
import importlib
import json
import math
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import wayfix

TARGET_P50_MS: dict[str, float] = {"zoom": 12, "landmark": 1, "oblique": 150, "oblique_cached": 3}
TARGET_P99_MS: dict[str, float] = {"landmark": 10}
PAPER_MS: dict[str, str] = {"zoom": "70", "landmark": "< 1", "oblique": "~1200 a query", "oblique_cached": "292"}
"""Urbex, Table 17. Its on-demand figure is for all oblique views of a query together, not for one."""

_COLD_KEYS = {"cold_p50_ms": "", "disk_p50_ms": " from disk", "build_ms": " to build"}
_HEADERS = ("case", "n", "p50", "p95", "p99", "max", "cold", "target", "paper")
_LIBRARIES = {"numpy": "numpy", "opencv": "cv2", "rasterio": "rasterio", "numba": "numba", "rapidfuzz": "rapidfuzz"}

_STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } th, td { padding: .2rem .8rem; text-align: right } th { border-bottom: 1px solid }
th:first-child, td:first-child { text-align: left } pre { overflow-x: auto; font-size: 13px }
svg { width: 100%; height: auto } svg text { fill: currentColor; font-size: 12px }
.grid { stroke: currentColor; opacity: .2 } .p50 { fill: #2f7ed8 } .p99 { fill: #9cc3ee }
.target { stroke: #d9480f; stroke-width: 2.5 } .missed { color: #d9480f; font-weight: 600 }
"""
_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 900, 130, 70, 24, 46  # of the chart, in its own pixels


def summary(rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """A case's figures from its times in milliseconds, one sequence per round; rounds without a time are left out."""
    filled = [times for times in rounds if len(times)]
    times = np.concatenate(filled)
    p50, p95, p99 = np.percentile(times, (50, 95, 99))
    return {
        "n": len(times),
        "p50_ms": _ms(p50),
        "p95_ms": _ms(p95),
        "p99_ms": _ms(p99),
        "max_ms": _ms(times.max()),
        "p50_ms_rounds": [_ms(np.median(part)) for part in filled],
    }


def environment() -> dict[str, Any]:
    """The entries `machine`, `versions` and `commit` of a report, as they are now."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
        "platform": platform.platform(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
    versions = {name: importlib.import_module(module).__version__ for name, module in _LIBRARIES.items()}
    versions = {"wayfix": wayfix.__version__, "python": platform.python_version(), **versions}
    return {"machine": machine, "versions": versions, "commit": _commit()}


def cases_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The cases of a report by name."""
    return {name: entry for name, entry in report.items() if isinstance(entry, dict) and "p50_ms" in entry}


def missed(name: str, entry: dict[str, Any]) -> bool:
    """Whether a case is slower than its target; False where it has none."""
    late_p50 = entry["p50_ms"] > TARGET_P50_MS.get(name, math.inf)
    return late_p50 or entry["p99_ms"] > TARGET_P99_MS.get(name, math.inf)


def print_table(report: dict[str, Any]) -> None:
    """Print a report's cases as an aligned table, all times in milliseconds, and where they were measured."""
    rows = [_HEADERS, *_rows(report)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADERS))]
    for row in rows:
        numbers = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        print("  ".join((row[0].ljust(widths[0]), *numbers)))
    machine = report.get("machine", {})
    print(f"times in ms; {machine.get('cpu', 'unknown CPU')}, {machine.get('cores', '?')} cores")


def write_html(report: dict[str, Any], path: Path) -> None:
    """Draw a report as a page that needs no other file: a chart, the table, and how it was measured."""
    head = "".join(f"<th>{html.escape(text)}</th>" for text in _HEADERS)
    body = ""
    for row, (name, entry) in zip(_rows(report), cases_of(report).items(), strict=True):
        style = ' class="missed"' if missed(name, entry) else ""
        body += f"<tr{style}>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>\n"
    others = {key: value for key, value in report.items() if key not in cases_of(report)}
    details = html.escape(json.dumps(others, indent=2, ensure_ascii=False))
    path.write_text(
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Wayfix latency</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>Wayfix latency</h1>\n"
        "<p>Milliseconds, log scale: median dark, 99th percentile light, target of the median as a line.</p>\n"
        f"{_chart(report)}\n<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"
        f"<h2>How it was measured</h2>\n<pre>{details}</pre>\n</body>\n</html>\n",
        encoding="utf-8",
    )


def _rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for name, entry in cases_of(report).items():
        times = (_short(entry[key]) for key in ("p50_ms", "p95_ms", "p99_ms", "max_ms"))
        cold = next((_short(entry[key]) + what for key, what in _COLD_KEYS.items() if key in entry), "-")
        target = _short(TARGET_P50_MS[name]) if name in TARGET_P50_MS else "-"
        if name in TARGET_P99_MS:
            target += f", p99 {_short(TARGET_P99_MS[name])}"
        if missed(name, entry):
            target += " missed"
        rows.append((name, str(entry["n"]), *times, cold, target, PAPER_MS.get(name, "-")))
    return rows


def _chart(report: dict[str, Any]) -> str:
    """Horizontal bars on a log scale, whole powers of ten at both ends."""
    cases = cases_of(report)
    values = [max(entry[key], 1e-4) for entry in cases.values() for key in ("p50_ms", "p99_ms")]
    values += [TARGET_P50_MS[name] for name in cases if name in TARGET_P50_MS]
    low = math.floor(math.log10(min(values, default=1.0)) - 1e-9)
    high = max(low + 1, math.ceil(math.log10(max(values, default=10.0))))
    bottom = _TOP + _ROW * len(cases)

    def x(value: float) -> float:
        share = (math.log10(max(value, 1e-4)) - low) / (high - low)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {bottom + 8}" role="img" aria-label="Latency of each case">']
    for power in range(low, high + 1):
        at = x(10.0**power)
        parts.append(f'<line class="grid" x1="{at}" y1="{_TOP - 6}" x2="{at}" y2="{bottom}"/>')
        parts.append(f'<text x="{at}" y="{_TOP - 10}" text-anchor="middle">{10.0**power:g} ms</text>')
    for number, (name, entry) in enumerate(cases.items()):
        y = _TOP + number * _ROW + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 22}" text-anchor="end">{html.escape(name)}</text>')
        for key, dy in (("p50", 0), ("p99", 18)):
            end, value = x(entry[f"{key}_ms"]), _short(entry[f"{key}_ms"])
            parts.append(
                f'<rect class="{key}" x="{_LEFT}" y="{y + dy}" width="{max(end - _LEFT, 1):.1f}" height="16">'
                f"<title>{html.escape(name)} {key}: {value} ms</title></rect>"
            )
            parts.append(f'<text x="{end + 6}" y="{y + dy + 12}">{value}</text>')
        if name in TARGET_P50_MS:
            at = x(TARGET_P50_MS[name])
            parts.append(f'<line class="target" x1="{at}" y1="{y - 2}" x2="{at}" y2="{y + 36}"/>')
    return "\n".join((*parts, "</svg>"))


def _short(value: float) -> str:
    """Three digits that count: 0.0123, 1.23, 12.3, 123."""
    if value <= 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(value)))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _ms(value: Any) -> float:
    return round(float(value), 4)


def _cpu_model() -> str:
    """As /proc/cpuinfo has it on x86, the board's name on ARM."""
    for path, key in ((Path("/proc/cpuinfo"), "model name"), (Path("/proc/device-tree/model"), None)):
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8", errors="replace").strip("\0\n")
        if key is None:
            return text
        for line in text.splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str | None:
    """The commit of the checkout this code runs from; None where it was installed from a wheel."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
