"""What is in the page of an evaluation: its tables, curves and data."""

from __future__ import annotations

import html.parser
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.evaluation.page.small_run import Evaluated

from wayfix.errors import InvalidOption, StorageFailed
from wayfix.evaluation.figures import Figure
from wayfix.evaluation.page.charts import bin_chart, calibration_chart, line_chart
from wayfix.evaluation.page.classes import CLASSES, class_of
from wayfix.evaluation.page.curves import calibration, hit_by_iou, hit_by_turns
from wayfix.evaluation.page.page import write_page
from wayfix.evaluation.trajectory import Trajectory


class Tables(html.parser.HTMLParser):
    """The rows of all tables as texts of their cells; a figure's interval is told in brackets."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._open = False
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._open = True
        elif tag == "small" and self._open:
            self.rows[-1][-1] += " "

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] += data


def percentages(figure: Figure) -> tuple[str, str]:
    if figure.value is None or figure.low is None or figure.high is None:
        return "-", ""
    return f"{100 * figure.value:.1f}", f"{100 * figure.low:.1f} to {100 * figure.high:.1f}"


# ---- what is in the page


def test_the_page_needs_nothing_from_outside(page: Path) -> None:
    source = page.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    markup = re.sub(r"(?s)<script type=\"application/json\".*?</script>", "", source)
    assert "default-src 'none'" in markup
    assert not re.search(r"https?://|<link|<[^>]*\ssrc\s*=|@import|url\(", markup)
    assert "{{" not in markup and source.isascii() is False  # arrows of the template


def test_tables_hold_the_reports_figures(page: Path, evaluated: Evaluated) -> None:
    rows, report = Tables(page.read_text(encoding="utf-8")).rows, evaluated.report
    accuracy = report.accuracy
    assert accuracy["hit@1"].n > 10 and accuracy["not_found_recall"].n >= 2
    by_rule = {"": "BEV IoU", "_positive": "only boxes that overlap", "_ciou": "CIoU"}
    for rule, title in by_rule.items():
        figures = [accuracy[f"hit@{k}{rule}"] for k in (1, 3, 5)]
        assert [title, *(" ".join(percentages(f)) for f in figures), str(figures[0].n)] in rows
    named = {
        "hit@1_iou>=0.25": "IoU of at least 0.25",
        "hit@1_iou>=0.5": "IoU of at least 0.5",
        "iou_2d": "2D IoU, %",
        "iou_3d": "3D IoU, %",
        "point_f1": "point F1, %",
        "regional_success": "regional success: some zoom held the target's centre",
        "not_found_precision": "“not found”: precision",
        "not_found_recall": "“not found”: recall",
    }
    for name, title in named.items():
        assert [title, *percentages(accuracy[name]), str(accuracy[name].n)] in rows
    overlapped = accuracy["overlapped_mean"]
    interval = f"{overlapped.low:.2f} to {overlapped.high:.2f}"
    assert ["candidates overlapped, mean", f"{overlapped.value:.2f}", interval, str(overlapped.n)] in rows
    assert ["prompt tokens", "-", "", "0"] in rows
    car = report.by_kind["car"]
    assert ["car", *(" ".join(percentages(car[name])) for name in ("right", "hit@1", "iou_2d")), "8"] in rows
    missing = report.landmarks[1]
    assert missing.less_than_clean is not None
    lost = " ".join(percentages(missing.less_than_clean))
    assert ["missing", " ".join(percentages(missing.hit1)), lost, str(missing.hit1.n)] in rows
    assert {"query", "policy", "zoom in"} <= {row[0] for row in rows}


def test_the_head_tells_what_was_run(page: Path) -> None:
    source = page.read_text(encoding="utf-8")
    for text in (
        "Queries</dt>",
        "14 in 2 scenes",
        "zoom_in, landmark_query",
        "a remark",
        "c0ffee",
        "0.5, 0.25",
        "abab",
    ):
        assert text in source, text


def test_a_picture_is_there_once_and_no_search_without_its_outcome(evaluated: Evaluated, tmp_path: Path) -> None:
    stranger = evaluated.searches[0].model_copy(update={"id": "nobody's"})
    write_page(evaluated.report, [*evaluated.searches, stranger], tmp_path / "run.html")
    source = (tmp_path / "run.html").read_text(encoding="utf-8")
    different = {picture for kept in evaluated.searches for picture in kept.pictures.values()}
    pictures = re.findall(r'id="picture-\d+">"([^"]+)"', source)
    assert sorted(pictures) == sorted(different)
    assert len(re.findall(r'id="search-\d+"', source)) == len(evaluated.searches)


def test_outcomes_have_classes(evaluated: Evaluated) -> None:
    town = [o for o in evaluated.report.outcomes if o.id.startswith("town-")]
    assert [f"town-{class_of(o)}" for o in town] == [o.id for o in town] == [f"town-{key}" for key in CLASSES]
    tight, wrong = town[0], town[2]
    unranked = {"candidates": 0, "rank": None}
    assert class_of(tight.model_copy(update=unranked)) == "tight"
    assert class_of(tight.model_copy(update=unranked | {"iou_2d": 0.1})) == "loose"
    assert class_of(wrong.model_copy(update=unranked)) == "wrong"


def test_curves_agree_with_the_figures(evaluated: Evaluated) -> None:
    clean = [o for o in evaluated.report.outcomes if o.condition == "clean"]
    by_iou, accuracy = dict(hit_by_iou(clean)), evaluated.report.accuracy
    assert by_iou[0] == accuracy["hit@1"]
    assert by_iou[0.25] == accuracy["hit@1_iou>=0.25"] and by_iou[0.5] == accuracy["hit@1_iou>=0.5"]
    by_turns = hit_by_turns(clean)
    assert sum(entry.figure.n for entry in by_turns) == accuracy["hit@1"].n
    one = next(entry.figure for entry in by_turns if entry.name == "1")
    assert one.value == 0.0 and one.n == sum(o.turns == 1 and o.target is not None for o in clean)


def test_calibration_is_the_mean_gap_of_confidence_and_right_answers(evaluated: Evaluated) -> None:
    right, wrong = evaluated.find("town-tight")[0], evaluated.find("town-wrong")[0]
    given = [(right, 0.9), (right, 1.0), (wrong, 0.95), (wrong, 0.1), (right, 0.12), (wrong, None)]
    found = calibration([outcome.model_copy(update={"confidence": c}) for outcome, c in given])
    assert found.n == 5
    assert [(pytest.approx(0.11), 0.5, 2), (pytest.approx(0.95), pytest.approx(2 / 3, abs=1e-5), 3)] == [
        (x, f.value, f.n) for x, f in found.points
    ]
    assert found.error == pytest.approx(2 / 5 * 0.39 + 3 / 5 * (0.95 - 2 / 3), abs=1e-5)
    unranked = right.model_copy(update={"confidence": 0.5, "candidates": 0, "rank": None})
    assert calibration([unranked]).n == 0 and calibration([]).error is None


def test_dots_stand_at_their_values(evaluated: Evaluated) -> None:
    clean = [o for o in evaluated.report.outcomes if o.condition == "clean"]
    charts = [
        (line_chart(hit_by_iou(clean), "x", "y"), [f for _, f in hit_by_iou(clean)]),
        (bin_chart(evaluated.report.regional, "x", "y"), [b.figure for b in evaluated.report.regional if b.figure.n]),
        (calibration_chart(calibration(clean)), [f for _, f in calibration(clean).points]),
    ]
    for chart, figures in charts:
        grid = [float(y) for y in re.findall(r'class="grid" x1="\d+" y1="([\d.]+)"', chart)]
        dots = [float(y) for y in re.findall(r'class="dot" cx="[\d.]+" cy="([\d.]+)"', chart)]
        shares = [(grid[0] - y) / (grid[0] - grid[-1]) for y in dots]
        assert len(grid) == 5 and shares == pytest.approx([f.value for f in figures], abs=0.002)
    assert f"n {evaluated.report.regional[0].figure.n}" in charts[1][0]


def test_paths_that_cannot_be_are_refused_and_an_old_page_stays(evaluated: Evaluated, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="folder does not exist"):
        write_page(evaluated.report, [], tmp_path / "missing" / "run.html")
    with pytest.raises(StorageFailed, match="cannot write"):
        write_page(evaluated.report, [], tmp_path)

    def broken() -> Iterator[Trajectory]:
        yield evaluated.searches[0]
        raise OSError(5, "Input/output error")

    (tmp_path / "run.html").write_text("the old page")
    with pytest.raises(StorageFailed, match="Input/output error"):
        write_page(evaluated.report, broken(), tmp_path / "run.html")
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.html"]
    assert (tmp_path / "run.html").read_text() == "the old page"
