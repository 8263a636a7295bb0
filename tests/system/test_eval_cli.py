"""`wayfix eval` and `wayfix trace` as their users run them: real processes, real files, exit codes and messages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wayfix.scene.scene import Scene


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "wayfix.cli", *map(str, arguments)]


def wayfix(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=300, check=False)


def test_a_file_of_queries_is_evaluated_compared_and_drawn(small_city_scene: Scene, tmp_path: Path) -> None:
    common = ("eval", "--suite", "file", "--scene", small_city_scene.folder, "--n", 8, "--quiet")
    a, b, page = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "a.html"
    done = wayfix(*common, "--policy", "oracle", "--json", a, "--html", page, "--html-queries", 3)
    assert done.returncode == 0, done.stderr
    assert "hit@1" in done.stdout and "landmarks" in done.stdout and "one scene only" in done.stdout
    report = json.loads(a.read_text())
    assert report["accuracy"]["hit@1"]["value"] == 1.0 and report["config"]["queries"] == 8
    assert page.read_text().count('id="search-') == 3
    assert not (tmp_path / "a.json.partial").exists()
    assert wayfix(*common, "--policy", "random", "--landmarks", "clean", "--json", b).returncode == 0
    compared = wayfix("eval", "compare", a, b, "--json")
    assert json.loads(compared.stdout)["measures"]["hit@1"]["difference"]["value"] < 0


def test_an_interrupted_evaluation_goes_on(small_city_scene: Scene, tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    arguments = ("eval", "--suite", "file", "--scene", small_city_scene.folder, "--json", target, "--quiet")
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "run.json.partial"
    while process.poll() is None and (not journal.exists() or journal.read_text().count('"outcome"') < 3):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "goes on when run again" in said and "Traceback" not in said
    before = journal.read_text().splitlines()
    assert not target.exists() and not any('"cancelled"' in line for line in before)
    assert wayfix(*arguments).returncode == 0
    outcomes = json.loads(target.read_text())["outcomes"]
    first = json.loads(before[1])["outcome"]
    assert first in outcomes, "what was searched before is kept, times included"
    assert sum(o["condition"] == "clean" for o in outcomes) == 20


def test_a_trace_is_shown_and_replayed(small_city_scene: Scene, tmp_path: Path) -> None:
    scene, trace, picture = small_city_scene.folder, tmp_path / "search.json", tmp_path / "search.png"
    wayfix("ground", "--scene", scene, "the red car", "--trace", trace)
    shown = wayfix("trace", "show", trace, "--scene", scene, "--picture", picture)
    assert shown.returncode == 0 and "turn 1:" in shown.stdout and picture.stat().st_size > 10_000
    again = wayfix("trace", "replay", trace, "--scene", scene, "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["same"] is True
    changed = json.loads(trace.read_text()) | {"box": [0, 0, 1, 1]}
    trace.write_text(json.dumps(changed))
    assert wayfix("trace", "replay", trace, "--scene", scene).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--policy", "remote"), "needs --endpoint"),
        (("--endpoint", "http://127.0.0.1:1/v1"), "belong to --policy remote"),
        (("--suite", "file"), "needs --scene"),
        (("--tools", "fly"), "--tools is a list of"),
        (("--landmarks", "vague"), "--landmarks is a list of"),
        (("--n", "0"), "--n is at least 1"),
        (("--html", "/nowhere/page.html"), "its folder does not exist"),
        (("--budget", "-1"), "a budget is"),
    ],
)
def test_a_wrong_option_is_named_before_any_work(arguments: tuple[str, ...], expected: str) -> None:
    done = wayfix("eval", *arguments)
    assert done.returncode == 2 and expected in done.stderr


def test_a_remote_model_that_is_not_there_fails_every_query_by_name(small_city_scene: Scene, tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    done = wayfix(
        "eval", "--suite", "file", "--scene", small_city_scene.folder, "--n", 2, "--quiet", "--json", report,
        "--policy", "remote", "--endpoint", "http://127.0.0.1:9/v1", "--model", "none", "--budget", "2s",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {o["code"] for o in json.loads(report.read_text())["outcomes"]} == {"endpoint_unreachable"}
