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
