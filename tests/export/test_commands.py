"""`wayfix export`, `wayfix engine` and `wayfix synth checkpoint` as their users call them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wayfix.cli import main
from wayfix.policy.engine.manifest import read_manifest
from wayfix_export import export
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.export import Exported

Capture = pytest.CaptureFixture[str]
Export = Callable[[Any, str], Exported]


def error_of(capsys: Capture) -> dict[str, str]:
    """What a command with --json said went wrong."""
    return json.loads(capsys.readouterr().out)["error"]


class TestExport:
    def test_it_makes_an_engine_and_shows_its_proof(
        self, checkpoint_folder: Path, tmp_path: Path, recorded: list[Any], few_boxes: None, capsys: Capture
    ) -> None:
        out = tmp_path / "engine"
        arguments = ["--out", str(out), "--precision", "fp32", "--image-sizes", "320,256,256", "--episodes", "1"]
        assert main(["export", str(checkpoint_folder), *arguments]) == 0
        said = capsys.readouterr()
        assert f"{out}: engine for cpu" in said.out
        assert "licence apache-2.0" in said.out
        assert "vision fp32, embedding fp32, decoder fp32" in said.out
        for name in read_manifest(out).parity:
            assert sum(line.strip().startswith(name) for line in said.out.splitlines()) >= 1
        assert "at most 1e-05" in said.out and "at least 24" in said.out
        assert "writing the decoder ..." in said.err
        assert recorded[0][0] == 1 and recorded[0][1].overview == 320

    def test_with_json_it_prints_the_manifest_alone(
        self, checkpoint_folder: Path, tmp_path: Path, proved: None, capsys: Capture
    ) -> None:
        out = tmp_path / "engine"
        assert main(["export", str(checkpoint_folder), "--out", str(out), "--json"]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out) == json.loads((out / "engine.json").read_text())
        assert said.err == ""

    def test_target_precision_and_overwrite_are_passed_on(
        self, checkpoint_folder: Path, tmp_path: Path, proved: None, capsys: Capture
    ) -> None:
        command = ["export", str(checkpoint_folder), "--out", str(tmp_path / "engine"), "--json"]
        assert main(command) == 0
        capsys.readouterr()
        assert main(command) == 2
        assert error_of(capsys)["code"] == "invalid_option"
        more = ["--target", "jetson-orin", "--precision", "vision=fp32,decoder=fp16", "--overwrite"]
        assert main([*command, *more]) == 0
        manifest = json.loads(capsys.readouterr().out)
        assert manifest["target"] == "jetson-orin"
        assert manifest["precision"] == {"vision": "fp32", "embedding": "fp16", "decoder": "fp16"}

    @pytest.mark.parametrize(
        ("more", "code", "said"),
        [
            (["--precision", "int2"], "invalid_option", "int2"),
            (["--precision", "fp16"], "invalid_option", "for cpu the decoder takes"),
            (["--image-sizes", "1024,768,0"], "invalid_option", "at least 1"),
            (["--image-sizes", "a,b,c"], "invalid_option", "1024,768,512"),
            (["--image-sizes", "1,2,3,4"], "invalid_option", "three numbers"),
            (["--episodes", "0"], "invalid_option", "--episodes must be at least 1"),
            (["--build-check"], "invalid_option", "not for cpu"),
        ],
    )
    def test_options_that_cannot_be_are_refused(
        self,
        more: list[str],
        code: str,
        said: str,
        checkpoint_folder: Path,
        tmp_path: Path,
        capsys: Capture,
        proved: None,
    ) -> None:
        command = ["export", str(checkpoint_folder), "--out", str(tmp_path / "engine"), *more]
        assert main([*command, "--json"]) == 2
        error = error_of(capsys)
        assert error["code"] == code and said in error["message"]
        assert main(command) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and f"[{code}]" in captured.err and said in captured.err
        assert list(tmp_path.iterdir()) == []

    def test_a_checkpoint_that_is_none_is_one_line(self, tmp_path: Path, capsys: Capture) -> None:
        assert main(["export", str(tmp_path / "nowhere"), "--out", str(tmp_path / "engine")]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "[unreadable_checkpoint]" in said

    def test_a_model_of_another_kind(self, with_config: Any, tmp_path: Path, capsys: Capture) -> None:
        folder = with_config(lambda config: config.update(model_type="llava"))
        assert main(["export", str(folder), "--out", str(tmp_path / "engine"), "--json"]) == 2
        error = error_of(capsys)
        assert error["code"] == "unsupported_model" and "llava" in error["message"]

    def test_failed_parity(
        self,
        checkpoint_folder: Path,
        other_checkpoint: Checkpoint,
        tmp_path: Path,
        recorded: Any,
        few_boxes: None,
        monkeypatch: pytest.MonkeyPatch,
        capsys: Capture,
    ) -> None:
        right = export.write_vision
        monkeypatch.setattr(export, "write_vision", lambda _, *more, **named: right(other_checkpoint, *more, **named))
        out = tmp_path / "engine"
        arguments = ["--out", str(out), "--image-sizes", "320,256,256", "--episodes", "1", "--json"]
        assert main(["export", str(checkpoint_folder), *arguments]) == 2
        error = error_of(capsys)
        assert error["code"] == "parity_failed" and "vision features" in error["message"]
        assert not out.exists()

    def test_stopping_it(
        self, checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Any, capsys: Capture
    ) -> None:
        def stop(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(export, "write_decoder", stop)
        assert main(["export", str(checkpoint_folder), "--out", str(tmp_path / "engine")]) == 130
        assert "stopped" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []

    def test_without_torch_it_says_what_to_install(
        self, checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: Any, capsys: Capture
    ) -> None:
        def no_torch(*_: Any) -> None:
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

        monkeypatch.setattr(export, "_prove", no_torch)
        assert main(["export", str(checkpoint_folder), "--out", str(tmp_path / "engine")]) == 2
        assert "pip install 'wayfix[export]'" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


class TestEngine:
    @pytest.fixture
    def engine(self, exported: Export) -> Path:
        return exported("cpu", "fp32").folder

    def test_info_shows_source_precision_and_proof(self, engine: Path, capsys: Capture) -> None:
        assert main(["engine", "info", str(engine)]) == 0
        said = capsys.readouterr().out
        assert "engine for cpu" in said and "licence apache-2.0" in said and "at least 24" in said
        assert f"({read_manifest(engine).source.sha256[:12]})" in said

    def test_info_as_json_is_the_manifest(self, engine: Path, capsys: Capture) -> None:
        assert main(["engine", "info", str(engine), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads((engine / "engine.json").read_text())

    def test_check_counts_the_files(self, engine: Path, capsys: Capture) -> None:
        assert main(["engine", "check", str(engine)]) == 0
        assert "8 files are as they were written" in capsys.readouterr().out

    def test_check_as_json(self, engine: Path, capsys: Capture) -> None:
        assert main(["engine", "check", str(engine), "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said == {"ok": True, "files": sorted(read_manifest(engine).files)}

    @pytest.mark.parametrize(
        ("name", "code"), [("decoder.onnx.data", "engine_corrupt"), ("tokenizer.json", "engine_mismatch")]
    )
    def test_check_finds_a_changed_byte(
        self, name: str, code: str, engine: Path, tmp_path: Path, capsys: Capture
    ) -> None:
        changed = shutil.copytree(engine, tmp_path / "engine")
        content = bytearray((changed / name).read_bytes())
        content[-2] ^= 1
        (changed / name).write_bytes(content)
        assert main(["engine", "check", str(changed), "--json"]) == 2
        error = error_of(capsys)
        assert error["code"] == code and name in error["message"]
        assert main(["engine", "info", str(changed), "--json"]) == 0, "sizes are right, and that is all it looks at"

    @pytest.mark.parametrize("action", ["info", "check"])
    def test_where_there_is_none_it_says_how_to_make_one(self, action: str, tmp_path: Path, capsys: Capture) -> None:
        assert main(["engine", action, str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert "[engine_not_found]" in said and "wayfix export" in said
        assert main(["engine", action, str(tmp_path), "--json"]) == 2
        assert error_of(capsys)["code"] == "engine_not_found"

    def test_without_an_action_it_shows_its_help(self, capsys: Capture) -> None:
        assert main(["engine"]) == 2
        assert "ACTION" in capsys.readouterr().out


class TestSynthCheckpoint:
    def test_it_makes_one_that_can_be_exported(self, checkpoint: Checkpoint, tmp_path: Path, capsys: Capture) -> None:
        assert main(["synth", "checkpoint", str(tmp_path / "tiny"), "--size", "tiny"]) == 0
        assert "size tiny" in capsys.readouterr().out
        assert Checkpoint(tmp_path / "tiny").source_hash() == checkpoint.source_hash()

    def test_seed_and_half_are_passed_on(self, other_checkpoint: Checkpoint, tmp_path: Path) -> None:
        for name, more in (("a", []), ("b", ["--half"])):
            assert main(["synth", "checkpoint", str(tmp_path / name), "--size", "tiny", "--seed", "1", *more]) == 0
        whole, half = (Checkpoint(tmp_path / name) for name in "ab")
        assert whole.source_hash() == other_checkpoint.source_hash()
        assert half.weight_bytes() < 0.6 * whole.weight_bytes()

    def test_a_folder_with_something_in_it_is_left_alone(self, tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "mine.txt").write_text("mine")
        assert main(["synth", "checkpoint", str(tmp_path), "--size", "tiny"]) == 2
        assert "[invalid_option]" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
