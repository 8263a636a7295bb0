"""The command line as its users run it: real processes, real files, exit codes and messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import pytest

ROOT = Path(__file__).parents[2]


def wayfix(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wayfix.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The demo's folder and what it printed."""
    out = tmp_path_factory.mktemp("demo")
    done = wayfix("demo", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out, done.stdout


def test_the_demo_answers_three_queries_rightly(demo: tuple[Path, str]) -> None:
    out, printed = demo
    assert "3 of 3 boxes are right" in printed
    ious = [float(line.split("IoU")[1]) for line in printed.splitlines() if line.strip().startswith("truth")]
    assert len(ious) == 3 and min(ious) >= 0.5
    for word in ("name", "position", "WGS84", "size", "confidence", "time"):
        assert sum(line.strip().startswith(word) for line in printed.splitlines()) == 3
    for number in (1, 2, 3):
        feature = json.loads((out / f"answer-{number}.geojson").read_text())
        assert feature["type"] == "Feature"
        assert feature["geometry"]["type"] == "Polygon"
        assert cv2.imread(str(out / f"answer-{number}.png")).shape[0] > 400


def test_ground_prints_one_geojson_feature(demo: tuple[Path, str]) -> None:
    done = wayfix("ground", "--scene", demo[0] / "scene", "Eviuda Bakery", "--json", "--budget", "20s")
    assert done.returncode == 0
    feature = json.loads(done.stdout)
    assert set(feature["properties"]) == {
        "query", "code", "message", "partial", "confidence", "policy", "scene", "revision", "survey_date", "box", "crs",
        "vertical_datum", "enu", "uncertainty_m", "alternatives", "turns", "time_ms", "budget_ms", "attribution",
    }  # fmt: skip
    lon, lat = feature["geometry"]["coordinates"][0][0]
    assert 3.2 < lon < 3.4 and 51.4 < lat < 51.6
    assert feature["properties"]["budget_ms"] == 20_000


def test_what_is_not_there_is_not_found(demo: tuple[Path, str]) -> None:
    done = wayfix("ground", "--scene", demo[0] / "scene", "the yellow bus in the car park of Udauto Hotel", "--json")
    assert done.returncode == 1
    feature = json.loads(done.stdout)
    assert feature["geometry"] is None
    assert feature["properties"]["code"] == "not_found"


def test_a_trace_and_a_picture_are_written(demo: tuple[Path, str], tmp_path: Path) -> None:
    picture, trace = tmp_path / "a.png", tmp_path / "a.json"
    done = wayfix("ground", "--scene", demo[0] / "scene", "Eviuda Bakery", "--show", picture, "--trace", trace)
    assert done.returncode == 0 and str(picture) in done.stdout
    assert cv2.imread(str(picture)) is not None
    assert [turn["action"] for turn in json.loads(trace.read_text())["turns"]] == [
        "landmark_query",
        "zoom_in",
        "answer",
    ]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["", "--budget", "1s"], "invalid_query"),
        (["x" * 100_000], "invalid_query"),
        (["the red car", "--budget=-1s"], "invalid_budget"),
        (["the red car", "--budget", "soon"], "invalid_budget"),
        (["the red car", "--show", "/nowhere/a.png"], "invalid_option"),
    ],
)
def test_bad_requests_name_their_code(demo: tuple[Path, str], arguments: list[str], code: str) -> None:
    done = wayfix("ground", "--scene", demo[0] / "scene", *arguments)
    assert done.returncode == 2
    assert f"[{code}]" in done.stderr
    assert "Traceback" not in done.stderr
    done = wayfix("ground", "--scene", demo[0] / "scene", *arguments, "--json")
    assert json.loads(done.stdout)["error"]["code"] == code


def test_no_scene_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    done = wayfix("ground", "--scene", tmp_path, "the red car")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "wayfix scene import" in done.stderr


def test_info_and_check(demo: tuple[Path, str], tmp_path: Path) -> None:
    scene = demo[0] / "scene"
    assert "EPSG:32631" in wayfix("scene", "info", scene).stdout
    assert json.loads(wayfix("scene", "info", scene, "--json").stdout)["id"] == "demo"
    assert json.loads(wayfix("scene", "check", scene, "--json").stdout)["problems"] == []
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(scene), str(copy)], check=True)
    with (copy / "points" / "tiles.bin").open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"\xff\x00\xff")
    done = wayfix("scene", "check", copy)
    assert done.returncode == 2
    assert "points/tiles.bin" in done.stdout


def test_synth_makes_a_city_with_queries(tmp_path: Path) -> None:
    done = wayfix("synth", "make", tmp_path / "city", "--seed", 3, "--size", 200, "--queries", 20)
    assert done.returncode == 0, done.stderr
    assert "crowded" in done.stdout
    queries = json.loads((tmp_path / "city" / "queries.geojson").read_text())["features"]
    assert len(queries) == 20
    assert {"query", "kind", "box", "landmark"} <= set(queries[0]["properties"])
    assert wayfix("synth", "make", tmp_path / "city", "--seed", 3, "--size", 200).returncode == 2


@pytest.mark.parametrize(
    "command", [["--help"], ["ground", "--help"], ["scene", "import", "--help"], ["bench", "--help"]]
)
def test_help_teaches(command: list[str]) -> None:
    done = wayfix(*command)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) > 5


def test_ctrl_c_during_an_import_leaves_nothing(tmp_path: Path) -> None:
    city = tmp_path / "city"
    command = [sys.executable, "-m", "wayfix.cli", "synth", "make", str(city), "--size", "400"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            if (tmp_path / ".city.importing").exists() or running.poll() is not None:
                break
            time.sleep(0.05)
        os.kill(running.pid, signal.SIGINT)
        _, printed = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130
    assert "stopped" in printed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_base_install_brings_no_numpy_and_says_what_is_missing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "bare")], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", str(ROOT)], check=True, timeout=300)
    listed = subprocess.run([str(python), "-m", "pip", "list"], capture_output=True, text=True, check=True).stdout
    assert "numpy" not in listed
    subprocess.run([str(python), "-c", "import wayfix.errors"], check=True)
    done = subprocess.run(
        [str(python), "-m", "wayfix.cli", "ground", "--scene", "x", "the red car"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "pip install 'wayfix[runtime]'" in done.stderr
