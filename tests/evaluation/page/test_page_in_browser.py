"""The page of an evaluation in a real browser: its list, its searches, and what it does with hostile texts."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from tests.browser import HOSTILE, chromium, needs_browser, opened, with_script
from tests.evaluation.page.small_run import Evaluated, config, searched, town_cases

from wayfix.evaluation.outcome import Outcome
from wayfix.evaluation.page.classes import CLASSES, class_of
from wayfix.evaluation.page.page import write_page
from wayfix.evaluation.queries import QuerySet
from wayfix.evaluation.report import make_report
from wayfix.geo.boxes import WorldBox
from wayfix.policy.scripted import ScriptedPolicy
from wayfix.scene.scene import Scene

UNKNOWN = ("kind", "landmark", "landmark_distance_m", "distractors_50m", "target", "answer", "confidence")
"""Fields that a file of queries, or a policy, may leave out."""

STRANGE = (
    "🏰 Café Émile",
    "בית הספר ליד הכיכר",
    "{{data}} __proto__ \"'\\ \u2028 &lt;",
    "<img src=x onerror=report('x')>",
)


def told(page: Path, script: str, fragment: str = "", size: str = "1200,900") -> dict[str, Any]:
    """What a script at the end of the page leaves in `log`, once everything has been drawn."""
    script = f"const log = {{}}; {script}; setTimeout(() => page.dataset.log = JSON.stringify(log), 1500);"
    document = opened(with_script(page, script, "asked.html"), fragment, size)
    return json.loads(document.state["log"])


def expected(evaluated: Evaluated, **wanted: str) -> list[str]:
    """Ids in the suite's order."""
    return [o.id for o in evaluated.report.outcomes if all(getattr(o, name) == v for name, v in wanted.items())]


@needs_browser
def test_the_page_draws(page: Path, evaluated: Evaluated) -> None:
    document = opened(page)
    pictures = {picture for kept in evaluated.searches for picture in kept.pictures.values()}
    assert document.scripts == 5 + len(evaluated.searches) + len(pictures)
    assert document.state["listed"] == str(len(expected(evaluated, condition="clean")))
    shown = [name for name in document.names if name in {o.query for o in evaluated.report.outcomes}]
    assert shown == [o.query for o in evaluated.report.outcomes if o.condition == "clean"]
    for text in ("14 of 20 searches", "Hit@1 by required IoU", "Calibration", "all scenes (14)"):
        assert text in document.text, text


@needs_browser
def test_filters_leave_exactly_the_right_queries(page: Path, evaluated: Evaluated) -> None:
    script = """
      const ids = () => [...document.querySelectorAll("#rows > li")].map(item => item.dataset.id);
      const set = (id, value, type) => {
        byId(id).value = value;
        byId(id).dispatchEvent(new Event(type, { bubbles: true }));
      };
      const chip = key => document.querySelector(`#classes [data-class=${key}]`);
      const counts = () => [...document.querySelectorAll("#classes .number")].map(number => Number(number.textContent));
      log.chips = counts();
      chip("tight").click(); log.tight = ids();
      chip("failed").click(); log.two = ids(); log.pressed = chip("failed").getAttribute("aria-pressed");
      log.chips_again = counts(); log.scenes = [...byId("scene").options].map(option => option.textContent);
      chip("tight").click(); chip("failed").click(); log.none = ids();
      set("condition", "missing", "change"); log.missing = ids();
      set("condition", "", "change"); log.all = ids();
      set("scene", "town", "change"); log.town = ids();
      log.options = [...byId("condition").options].map(option => option.textContent);
      set("kind", "car", "change"); set("text", "WHITE tight", "input"); log.text = ids(); log.hash = location.hash;
      byId("filters").reset(); log.reset = ids();
      const addresses = {
        iou: "sort=iou&down=1", turns: "sort=turns", id: "sort=id", kept: log.hash.slice(1),
        bad: "scene=nowhere&sort=__proto__&page=x&class=none&open=nobody",
      };
      for (const [key, fragment] of Object.entries(addresses)) {
        history.replaceState(null, "", "#" + fragment);
        readAddress();
        log["at_" + key] = ids();
      }
    """
    log, outcomes = told(page, script), evaluated.report.outcomes
    clean = [o for o in outcomes if o.condition == "clean"]
    assert log["chips"] == log["chips_again"] == [sum(class_of(o) == key for o in clean) for key in CLASSES]
    assert log["tight"] == [o.id for o in clean if class_of(o) == "tight"]
    assert log["two"] == [o.id for o in clean if class_of(o) in ("tight", "failed")] and log["pressed"] == "true"
    tight = sum(class_of(o) == "tight" and o.scene == "small-city" for o in clean)
    assert log["scenes"] == [f"all scenes ({len(log['two'])})", f"small-city ({tight})", "town (2)"]
    assert log["none"] == [o.id for o in clean]
    assert log["missing"] == expected(evaluated, condition="missing")
    assert log["all"] == log["reset"] == [o.id for o in outcomes]
    assert log["town"] == expected(evaluated, scene="town")
    assert log["options"] == ["all (8)", "clean (8)", "missing (0)"]
    assert log["text"] == log["at_kept"] == ["town-tight"]
    assert log["hash"] == "#text=WHITE+tight&kind=car&condition=&scene=town"
    measured = sorted((o for o in clean if o.iou_2d is not None), key=lambda o: -(o.iou_2d or 0))
    assert log["at_iou"] == [o.id for o in (*measured, *(o for o in clean if o.iou_2d is None))]
    assert log["at_turns"] == [o.id for o in sorted(clean, key=lambda o: o.turns)]
    assert log["at_id"] == sorted(o.id for o in clean)
    assert log["at_bad"] == [o.id for o in clean]


@needs_browser
def test_long_lists_have_pages(evaluated: Evaluated, tmp_path: Path) -> None:
    first = evaluated.report.outcomes[0]
    many = [first.model_copy(update={"id": f"q{n}"}) for n in range(120)]
    write_page(make_report(config(conditions=["clean"]), many, [], {}), [], tmp_path / "run.html")
    script = """
      const ids = () => [...document.querySelectorAll("#rows > li")].map(item => item.dataset.id);
      const note = () => [ids()[0], ids().length, byId("page-number").textContent, location.hash];
      log.at_last = note(); byId("before").click(); log.before = note();
      byId("rows").lastChild.querySelector("button").click(); log.opened = note();
      [...document.querySelectorAll(".tools button")].find(button => button.textContent.startsWith("After")).click();
      log.next = note();
      log.said = document.querySelector(".opened .note").textContent;
      log.focus = document.activeElement.textContent;
    """
    log = told(tmp_path / "run.html", script, "#page=3")
    assert log["at_last"][:3] == ["q100", 20, "page 3 of 3"]
    assert log["before"] == ["q50", 50, "page 2 of 3", "#page=2"]
    assert log["opened"] == ["q50", 50, "page 2 of 3", "#open=q99&under=clean"]
    assert log["next"] == ["q100", 20, "page 3 of 3", "#open=q100&under=clean"]
    assert "no pictures" in log["said"] and "q100" in log["focus"]


@needs_browser
def test_an_opened_query_shows_boxes_where_they_lie(
    page: Path, evaluated: Evaluated, things: dict[str, WorldBox]
) -> None:
    script = """
      log.before = document.images.length;
      choose(rows.find(row => row.id === "town-tight"));
      setTimeout(() => {
        log.images = [...document.images].map(image => [image.naturalWidth, image.naturalHeight]);
        for (const figure of document.querySelectorAll(".view")) {
          const frame = figure.querySelector("img").getBoundingClientRect();
          const share = ({ left, right, top, bottom }) => [
            (left - frame.left) / frame.width, (top - frame.top) / frame.height,
            (right - frame.left) / frame.width, (bottom - frame.top) / frame.height];
          const view = figure.dataset.view, all = what => [...figure.querySelectorAll(what)];
          const kind = box => box.parentElement.className.baseVal;
          log[view] = all("rect.shape").map(box => [kind(box), share(box.getBoundingClientRect())]);
          log[view + "-rings"] = all("circle.shape").length;
          log[view + "-labels"] = all(".label").map(label => [label.textContent, share(label.getBoundingClientRect())]);
        }
        log.turns = [...document.querySelectorAll(".turns > li")].map(item => item.textContent);
        document.querySelector(".opened button").click();
        log.closed = document.images.length;
      }, 800);
    """
    log = told(page, script)
    outcome, kept = evaluated.find("town-tight")
    sizes = [cv2.imdecode(np.frombuffer(base64.b64decode(p), np.uint8), 1).shape[1::-1] for p in kept.pictures.values()]
    assert (log["before"], log["closed"]) == (0, 0)
    assert log["images"] == [list(size) for size in sizes] and len(sizes) == 3
    regions = {view.id: view.region for view in kept.trace.views}
    zoomed, seen_from = (view.id for view in kept.trace.views[1:])
    assert outcome.answer is not None
    wanted = {
        "v0": {
            "crop": regions[zoomed],
            "landmark": box_of(things["red hall"]),
            "target": box_of(things["white car"]),
            "answer": outcome.answer[:4],
        },
        zoomed: {"crop": regions[seen_from], "target": box_of(things["white car"]), "answer": outcome.answer[:4]},
    }
    for view, boxes in wanted.items():
        west, south, east, north = regions[view]
        drawn = dict(log[view])  # of several crops, the last
        for kind, (x0, y0, x1, y1) in boxes.items():
            shares = [(x0 - west) / (east - west), (north - y1) / (north - south)]
            shares += [(x1 - west) / (east - west), (north - y0) / (north - south)]
            if kind == "crop":
                assert [kind, pytest.approx(shares, abs=0.002)] in log[view]
            else:
                # A landmark is told in whole thousandths of a view.
                assert drawn[kind] == pytest.approx(shares, abs=0.003), (view, kind)
    assert log[seen_from] == [] and log[f"{seen_from}-labels"] == []
    assert log["v0-rings"] == 2, "a car in the whole scene is small"
    labels = log["v0-labels"]
    assert {text for text, _ in labels} == {"target", "answer", "Red Hall", zoomed, seen_from}
    for number, (_, a) in enumerate(labels):
        assert min(a) > -0.01 and max(a) < 1.01
        for _, b in labels[:number]:
            assert a[2] <= b[0] + 1e-3 or b[2] <= a[0] + 1e-3 or a[3] <= b[1] + 1e-3 or b[3] <= a[1] + 1e-3
    assert HOSTILE in log["turns"][0] and "found, Red Hall" in log["turns"][0]
    assert "malformed_action" in log["turns"][3] and log["turns"][-1].startswith("End: ok")


def box_of(box: WorldBox) -> tuple[float, float, float, float]:
    return box.min_x, box.min_y, box.max_x, box.max_y


@needs_browser
def test_pixels_of_picture_and_boxes_agree(page: Path, evaluated: Evaluated, things: dict[str, WorldBox]) -> None:
    _, kept = evaluated.find("town-wrong")
    alone = page.with_name("alone.html")
    style = "<style>header, #figures, #curves, nav, form { display: none }</style>"
    still = "<script>Element.prototype.scrollIntoView = () => {}</script>"
    alone.write_text(page.read_text(encoding="utf-8").replace("</head>", f"{style}{still}</head>", 1), encoding="utf-8")
    script = """
      const tell = () => {
        const { left, top, width, height } = document.querySelector("[data-view=v1] img").getBoundingClientRect();
        console.log(`picture=${[left, top, width, height]};`);
      };
      setInterval(tell, 200);
    """
    target = alone.with_suffix(".png")
    options = ("--enable-logging=stderr", "--window-size=1200,2600", f"--screenshot={target}")
    fragment = "#class=wrong&scene=town&open=town-wrong&under=clean"
    said = chromium(with_script(alone, script, "telling.html"), fragment, *options).stderr
    left, top, width, height = (float(v) for v in re.findall(r"picture=([-\d.,]+);", said)[-1].split(","))
    shot = cv2.cvtColor(cv2.imread(str(target)), cv2.COLOR_BGR2RGB).astype(int)
    region = next(view.region for view in kept.trace.views if view.id == "v1")
    car = things["white car"]

    def pixel(x: float, y: float) -> np.ndarray:
        column = left + (x - region[0]) / (region[2] - region[0]) * width
        return shot[round(top + (region[3] - y) / (region[3] - region[1]) * height), round(column)]

    assert pixel(*car.center).min() > 220, "the car is white"
    for edge in ((car.min_x, car.center[1]), (car.max_x, car.center[1]), (car.center[0], car.max_y)):
        red, green, blue = pixel(*edge)
        assert green > red + 60 and green > blue + 40, "the target's box is green"


@needs_browser
def test_a_partial_answer_is_told_apart(page: Path) -> None:
    script = """
      choose(rows.find(row => row.id === "town-failed"));
      setTimeout(() => {
        const shape = document.querySelector("[data-view=v0] g.partial rect.shape");
        log.style = [getComputedStyle(shape).stroke, getComputedStyle(shape).strokeDasharray];
        log.legend = document.querySelector(".legend").textContent;
        document.querySelectorAll(".legend input")[1].click();
        log.hidden = getComputedStyle(shape.parentElement).display;
        document.querySelector(".views button").click();
        log.large = document.querySelector(".view").className;
        byId("rows").dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
        log.closed = document.querySelector(".opened") === null && document.activeElement.className === "row";
        const at = document.activeElement;
        at.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp", bubbles: true }));
        log.moved = document.activeElement.parentElement === at.parentElement.previousElementSibling;
      }, 800);
    """
    log = told(page, script)
    assert log["style"] == ["rgb(255, 156, 42)", "6px, 4px"]
    assert "best region (partial answer)" in log["legend"]
    assert log["hidden"] == "none" and "large" in log["large"]
    assert log["closed"] and log["moved"]


@needs_browser
def test_hostile_and_foreign_texts_are_text(
    town: Scene, things: dict[str, WorldBox], evaluated: Evaluated, tmp_path: Path
) -> None:
    texts, found = (HOSTILE, *STRANGE), []
    case, turns = town_cases(things)[0]
    for number, text in enumerate(texts):
        own = replace(case, id=f"{number} {text}", query=text, kind=text, landmark=text)
        outcome, kept = searched(town, QuerySet((own,), np.empty((0, 4))), own, ScriptedPolicy(turns, name=text))
        kept.trace.turns[0].result = {"status": text, "name": text, "box": [1, 2, 30, 40], "view_id": "v0"}
        kept.trace.message = text
        found.append((outcome.model_copy(update={"scene": text}), kept))
        kept.trace.scene = text
    changed = config(suite=HOSTILE, policy=STRANGE[1], policy_detail=HOSTILE, tools=list(STRANGE))
    environment = {"machine": {HOSTILE: HOSTILE}, "versions": {STRANGE[0]: HOSTILE}, "commit": HOSTILE}
    report = make_report(changed, [o for o, _ in found], [HOSTILE, "\ud800"], environment)
    write_page(report, [kept for _, kept in found], tmp_path / "run.html")
    script = """
      log.titles = [];
      for (const row of rows) {
        choose(row);
        log.titles.push(document.querySelector(".opened h3").textContent);
        const { trace } = searchOf(row);
        drawBoxes(document.querySelector(".view svg"), trace.views[0], boxesOf(row, trace));
        log.labels = document.querySelectorAll(".view .label").length;
      }
      log.kinds = [...byId("kind").options].slice(1).map(option => option.value).sort();
    """
    document = opened(
        with_script(
            tmp_path / "run.html", f"const log = {{}}; {script} page.dataset.log = JSON.stringify(log)", "asked.html"
        )
    )
    log = json.loads(document.state["log"])
    assert "hacked" not in document.state
    assert document.scripts == 6 + len(texts) + len({p for _, kept in found for p in kept.pictures.values()})
    assert log["titles"] == list(texts) and sorted(log["kinds"]) == sorted(texts)
    assert set(texts) <= set(document.names) and log["labels"] > 2


@needs_browser
@pytest.mark.parametrize("count", [0, 1])
def test_a_report_without_figures_has_a_page(evaluated: Evaluated, tmp_path: Path, count: int) -> None:
    unknown = [name for name, field in Outcome.model_fields.items() if field.default is None or name in UNKNOWN]
    empty: dict[str, Any] = dict.fromkeys(unknown)
    failed, kept = evaluated.find("town-failed")
    bare = failed.model_copy(update=empty | {"candidates": 0, "partial": False, "code": "policy_failed"})
    report = make_report(config(conditions=["clean"]), [bare][:count], [], {})
    write_page(report, [kept], tmp_path / "run.html")
    document = opened(tmp_path / "run.html", "#open=town-failed")
    assert document.state["listed"] == str(count)
    assert "nothing to measure" in document.text and ("End: policy_failed" in document.text) == bool(count)
    assert "NaN" not in document.text and "undefined" not in document.text


@needs_browser
def test_the_page_fits_a_phone_and_the_dark(page: Path) -> None:
    script = """
      byId("figures").scrollIntoView = byId("rows").scrollIntoView = () => {};
      choose(rows.find(row => row.id === "town-tight"));
      scrollTo(0, 0);
      // The window gets its size just before the picture is taken.
      addEventListener("resize", () => console.log(`width=${innerWidth},${page.scrollWidth};`));
    """
    phone, shots = with_script(page, script, "phone.html"), []
    for options in ((), ("--blink-settings=preferredColorScheme=0",)):
        target = phone.with_suffix(".png")
        shown = ("--enable-logging=stderr", "--window-size=360,740", f"--screenshot={target}", *options)
        said = chromium(phone, "", *shown).stderr
        width, needed = re.findall(r"width=(\d+),(\d+);", said)[-1]
        assert int(width) == 360 and int(needed) <= 360
        shots.append(cv2.imread(str(target)))
    light, dark = (np.median(shot) for shot in shots)
    assert light > 200 and dark < 60
