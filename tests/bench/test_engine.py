"""The engine's benchmark on a tiny random model. Nothing here looks at how long anything took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wayfix.bench.engine import EngineBenchConfig, bench_engine, read_bandwidth
from wayfix.bench.report import write_html
from wayfix.policy.engine.engine import EngineConfig
from wayfix.policy.engine.manifest import Precisions
from wayfix.views.view import ImageSizes

ONCE = EngineBenchConfig(repeats=1, turns=(1, 2))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny checkpoint and its engine."""
    for module in ("onnx", "safetensors", "ml_dtypes"):
        pytest.importorskip(module)
    from wayfix_export.export import ExportOptions, write_unproven
    from wayfix_export.synthetic import write_checkpoint

    checkpoint, engine = tmp_path_factory.mktemp("checkpoint"), tmp_path_factory.mktemp("engines") / "tiny"
    write_checkpoint(checkpoint, "tiny")
    precision = Precisions(vision="fp32", embedding="fp32", decoder="int8")
    write_unproven(checkpoint, engine, ExportOptions(precision=precision, sizes=ImageSizes(256, 256, 256)))
    return checkpoint, engine


@pytest.fixture(scope="module")
def report(folders: tuple[Path, Path]) -> dict[str, Any]:
    return bench_engine(folders[1], None, EngineConfig(threads=1), ONCE, quiet=True)


def test_every_part_and_turn_is_a_case(report: dict[str, Any]) -> None:
    cases = {name for name, entry in report.items() if isinstance(entry, dict) and "p50_ms" in entry}
    assert cases == {
        *("image 256 px", "prefill 64", "prefill 256", "prefill 1024", "decode after 200", "decode after 2000"),
        *("first token", "turn 1 kept", "turn 1 fresh", "turn 2 kept", "turn 2 fresh"),
    }
    assert all(report[name]["n"] == 3 and report[name]["p50_ms"] > 0 for name in cases)
    assert json.loads(json.dumps(report)).keys() == report.keys()


def test_figures_follow_from_the_medians(report: dict[str, Any]) -> None:
    figures, median = report["figures"], report["decode after 200"]["p50_ms"]
    assert figures["decode_after_200_tokens_per_s"] == pytest.approx(1000 / median, abs=0.1)
    share = report["turn 2 kept"]["p50_ms"] / report["turn 2 fresh"]["p50_ms"]
    assert figures["turn_2_kept_share"] == pytest.approx(share, abs=1e-3)
    read = figures["decode_after_200_reads_mb"] * 1e6
    assert figures["decode_after_200_gb_per_s"] == pytest.approx(read / median / 1e6, rel=0.15)


def test_what_a_token_reads_grows_with_the_tokens_before_it(report: dict[str, Any], folders: tuple[Path, Path]) -> None:
    figures = report["figures"]
    weights = (folders[1] / "decoder.onnx.data").stat().st_size / 1e6
    grown = figures["decode_after_2000_reads_mb"] - figures["decode_after_200_reads_mb"]
    assert grown == pytest.approx(1800 * report["memory"]["cache_kb_per_token"] / 1e3, abs=0.2)
    assert figures["decode_after_200_reads_mb"] > weights


def test_the_report_says_how_it_was_made(report: dict[str, Any]) -> None:
    assert report["config"]["threads"] == 1
    assert report["config"]["precision"]["decoder"] == "int8"
    assert "onnxruntime" in report["versions"]
    assert {"vision_mb", "embedding_mb", "decoder_mb", "decoder_resident_mb"} <= report["memory"].keys()


def test_it_is_drawn(report: dict[str, Any], tmp_path: Path) -> None:
    write_html(report, tmp_path / "engine.html")
    assert "turn 2 fresh" in (tmp_path / "engine.html").read_text(encoding="utf-8")


def test_memory_is_read_at_some_speed() -> None:
    assert read_bandwidth(1) > 1e8


@pytest.mark.slow
def test_transformers_runs_the_same_in_the_same_rounds(folders: tuple[Path, Path]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    checkpoint, engine = folders
    report = bench_engine(engine, checkpoint, EngineConfig(threads=1), ONCE, quiet=True)
    median = report["generate() decode after 200"]["p50_ms"]
    ratio = report["figures"]["decode_after_200_times_generate"]
    assert ratio == pytest.approx(median / report["decode after 200"]["p50_ms"], abs=0.01)
    assert report["generate() turn 2"]["n"] == 3
    assert {"torch", "transformers"} <= report["versions"].keys()
