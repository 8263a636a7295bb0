"""Configurations say what is wrong with them, and come with Wayfix whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from wayfix.cli import main
from wayfix.errors import InvalidOption
from wayfix_train.nano.run import load_config


@pytest.mark.parametrize("name", ["nano", "nano-gpu"])
def test_shipped_configurations_are_valid(name: str) -> None:
    config = load_config(name)
    assert list(config.phases) == ["vision", "text", "perception", "joint"]


def test_an_unknown_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"phases": {"text": {"phase": "text", "steps": 1, "learning_rat": 1e-3}}}))
    with pytest.raises(InvalidOption, match=r"phases\.text\.learning_rat"):
        load_config(str(path))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InvalidOption, match="nano-gpu"):
        load_config("mano")


def test_the_command_prints_a_whole_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "sft", "--config", "nano", "--print-config"]) == 0
    assert json.loads(capsys.readouterr().out)["phases"]["joint"]["sigma_end"] == 2.0


@pytest.mark.slow
def test_a_whole_warm_start_ends_in_a_checkpoint_that_exports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phase = {"steps": 1, "warmup": 1, "zooms": 2, "aims": 2, "decisions": 2, "searches": 1}
    phases = {name: {"phase": name, **phase} for name in ("vision", "text", "joint")}
    config = {"cities": 1, "first_cities": 1, "shard": {"decisions": 8, "searches": 10}, "phases": phases}
    (tmp_path / "small.json").write_text(json.dumps(config))
    arguments = ["train", "sft", "--config", str(tmp_path / "small.json"), "--out", str(tmp_path / "out"), "--json"]
    assert main(arguments) == 0
    checkpoint = Path(json.loads(capsys.readouterr().out.splitlines()[-1])["checkpoint"])
    for number, name in enumerate(phases):
        assert (tmp_path / "out" / f"{number}-{name}" / "weights.safetensors").is_file()
    engine = tmp_path / "engine"
    assert main(["export", str(checkpoint), "--out", str(engine), "--precision", "fp32", "--episodes", "1"]) == 0
    assert sum(path.stat().st_size for path in engine.iterdir()) < 20_000_000
    # Again: all phases are done, and nothing is trained anew.
    assert main(arguments) == 0
