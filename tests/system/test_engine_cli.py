"""An engine as the policy of the commands, from the outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from wayfix.scene.scene import Scene
from wayfix.views.view import ImageSizes


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random engine."""
    for module in ("onnx", "safetensors", "ml_dtypes"):
        pytest.importorskip(module)
    from wayfix_export.export import ExportOptions, write_unproven
    from wayfix_export.synthetic import write_checkpoint

    checkpoint, folder = tmp_path_factory.mktemp("checkpoint"), tmp_path_factory.mktemp("engines") / "tiny"
    write_checkpoint(checkpoint, "tiny")
    write_unproven(checkpoint, folder, ExportOptions(sizes=ImageSizes(256, 256, 256)))
    return folder


def wayfix(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "wayfix.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_ground_answers_with_an_engine_and_never_loads_torch(engine: Path, small_city_scene: Scene) -> None:
    code = (
        "import sys\n"
        "from wayfix.cli import main\n"
        f"status = main(['ground', 'the red car', '--scene', {str(small_city_scene.folder)!r}, '--policy', 'engine', "
        f"'--engine', {str(engine)!r}, '--json'])\n"
        "print(status, sorted({'torch', 'transformers', 'onnx', 'wayfix_export'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    answer, status = done.stdout.splitlines()
    result = json.loads(answer)["properties"]
    assert result["policy"] == "engine"
    assert status == f"{0 if result['code'] == 'ok' else 1} []", done.stderr


def test_equal_seeds_give_equal_answers(engine: Path, small_city_scene: Scene) -> None:
    def sampled(seed: int) -> object:
        options = ("--policy", "engine", "--engine", engine, "--temperature", "1", "--seed-tokens", seed, "--json")
        done = wayfix("ground", "the red car", "--scene", small_city_scene.folder, *options)
        return json.loads(done.stdout)["geometry"]

    assert sampled(1) == sampled(1)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--policy", "engine"), "invalid_option"),
        (("--policy", "engine", "--engine", "/nowhere"), "engine_not_found"),
        (("--engine", "/nowhere"), "invalid_option"),
        (("--policy", "engine", "--engine", "{engine}", "--providers", "Abacus"), "engine_unsupported"),
        (("--policy", "engine", "--engine", "{engine}", "--threads", "0"), "invalid_option"),
        (("--policy", "engine", "--engine", "{engine}", "--temperature", "-1"), "invalid_option"),
    ],
)
def test_what_cannot_be_is_told_by_name(
    options: tuple[str, ...], code: str, engine: Path, small_city_scene: Scene
) -> None:
    chosen = [option.format(engine=engine) for option in options]
    done = wayfix("ground", "the red car", "--scene", small_city_scene.folder, "--json", *chosen)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == code
    assert "Traceback" not in done.stderr


def test_eval_takes_an_engine(engine: Path, tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    done = wayfix(
        "eval", "--suite", "synth", "--n", 2, "--policy", "engine", "--engine", engine, "--json", report, "--quiet"
    )
    assert done.returncode == 0, done.stderr
    assert "tiny" in report.read_text(encoding="utf-8") or "checkpoint" in report.read_text(encoding="utf-8")
