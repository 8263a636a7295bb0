"""Reports: the figures of known times, the table's text, and a page that needs nothing else."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from wayfix.bench.report import cases_of, environment, missed, print_table, summary, write_html


def entry(p50: float, p99: float, **more: float) -> dict[str, Any]:
    return {"n": 200, "p50_ms": p50, "p95_ms": p99 * 0.9, "p99_ms": p99, "max_ms": p99 * 2, **more}


@pytest.fixture
def report() -> dict[str, Any]:
    return {
        "zoom": entry(9.871, 20.0, cold_p50_ms=31.2),
        "landmark": entry(0.00512, 12.5, build_ms=1404.0),
        "a <new> case": entry(1234.5, 2345.6),
        "machine": {"cpu": "Some <CPU> & Co", "cores": 2},
        "versions": {"numpy": "2.0"},
        "config": {"repeats": 200},
        "commit": None,
    }


class Page(HTMLParser):
    """Collects text and attributes, and fails where tags do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_percentiles_of_known_times() -> None:
    figures = summary([list(range(1, 51)), list(range(51, 102))])
    assert figures == {
        "n": 101,
        "p50_ms": 51.0,
        "p95_ms": 96.0,
        "p99_ms": 100.0,
        "max_ms": 101.0,
        "p50_ms_rounds": [25.5, 76.0],
    }


def test_rounds_without_a_call_are_left_out() -> None:
    assert summary([[2.0], [], []])["p50_ms_rounds"] == [2.0]


def test_every_entry_with_a_median_is_a_case(report: dict[str, Any]) -> None:
    assert list(cases_of(report)) == ["zoom", "landmark", "a <new> case"]


def test_a_target_may_be_missed_at_either_percentile(report: dict[str, Any]) -> None:
    assert not missed("zoom", report["zoom"])
    assert missed("zoom", entry(12.1, 13.0))
    assert missed("landmark", report["landmark"])
    assert not missed("a <new> case", report["a <new> case"])


def test_table_is_aligned_and_names_targets_and_the_paper(
    report: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    print_table(report)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["case", "n", "p50", "p95", "p99", "max", "cold", "target", "paper"]
    assert lines[1].split() == ["zoom", "200", "9.87", "18", "20", "40", "31.2", "12", "70"]
    assert "1404 to build" in lines[2] and "1, p99 10 missed" in lines[2] and lines[2].endswith("< 1")
    assert lines[3].split()[-3:] == ["-", "-", "-"]
    assert len({len(line) for line in lines[:4]}) == 1
    assert "Some <CPU>" in lines[4]


def test_page_is_whole_and_needs_no_other_file(report: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(report, path)
    source = path.read_text(encoding="utf-8")
    page = Page()
    page.feed(source)
    assert page.open == []
    assert "http" not in source and not {"src", "href"} & {name for name, _ in page.attributes}
    for name in cases_of(report):
        assert page.text.count(name) >= 2, "in the chart and in the table"
    assert "Some <CPU> & Co" in page.text and '"repeats": 200' in page.text
    widths = [float(value or 0) for name, value in page.attributes if name == "width"]
    assert len(widths) == 6 and min(widths) > 0


def test_page_of_a_report_without_cases(tmp_path: Path) -> None:
    write_html({"commit": None}, tmp_path / "report.html")
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_environment_says_where_and_fits_into_json() -> None:
    around = json.loads(json.dumps(environment()))
    assert set(around) == {"machine", "versions", "commit"}
    assert set(around["machine"]) == {"cpu", "cores", "memory_gb", "platform", "load_average"}
    assert set(around["versions"]) == {"python", "numpy", "opencv", "rasterio", "numba", "rapidfuzz", "wayfix"}
