"""The proof passes for an engine that says what its checkpoint says, and names the part of one that does not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from wayfix.policy.engine.chat import Chat
from wayfix.policy.engine.images import ImageSpec
from wayfix.policy.engine.manifest import Precisions
from wayfix_export import parity
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.checks import Check
from wayfix_export.episodes import Episode
from wayfix_export.export import ExportOptions, parse_precision, write_unproven
from wayfix_export.parity import Parity, engine_checks
from wayfix_export.reference import Reference

CHECKS = {
    "preprocessing", "vision features", "deepstack features", "logits", "likeliest tokens", "boxes, engine",
    "boxes, checkpoint", "forced boxes",
}  # fmt: skip

Prove = Callable[..., dict[str, Check]]


@pytest.fixture
def prove(
    checkpoint: Checkpoint, reference: Reference, chat: Chat, spec: ImageSpec, episodes: list[Episode], few_boxes: None
) -> Prove:
    """Compare a folder of graphs with the checkpoint."""

    def run(folder: Path, precision: Precisions, spec: ImageSpec = spec) -> dict[str, Check]:
        found = Parity(checkpoint, reference, folder, chat, spec, precision).run(episodes, lambda _: None)
        return {check.name: check for check in found}

    return run


def precisions(decoder: Any, vision: Any = "fp32") -> Precisions:
    return Precisions(vision=vision, embedding="fp32", decoder=decoder)


def failed(found: dict[str, Check]) -> set[str]:
    return {name for name, check in found.items() if not check.passed}


def mixed(into: Path, graphs: Path, other: Path, part: str) -> Path:
    """A folder of graphs, of which one part is another's."""
    shutil.copytree(graphs, into)
    for path in other.glob(f"{part}.onnx*"):
        shutil.copy(path, into / path.name)
    return into


@pytest.mark.parametrize(
    ("flavour", "decoder", "vision"),
    [
        ("cpu", "fp32", "fp32"),
        ("cpu", "int8", "int8"),
        ("cpu", "int4", "int8"),
        ("trt", "fp16", "fp16"),
        ("trt", "int8", "int8"),
        ("trt", "int4", "fp16"),
    ],
)
def test_every_precision_passes(
    flavour: Any, decoder: Any, vision: Any, graphs: Callable[..., Path], prove: Prove
) -> None:
    found = prove(graphs(flavour, decoder, vision), precisions(decoder, vision))
    assert set(found) == CHECKS
    assert failed(found) == set()
    assert "2 episodes" in found["logits"].note


@pytest.mark.parametrize(
    ("part", "noticed"),
    [
        ("vision", {"vision features", "deepstack features", "logits", "likeliest tokens"}),
        ("embedding", {"logits", "likeliest tokens"}),
        ("decoder", {"logits", "likeliest tokens"}),
    ],
)
def test_a_part_of_another_checkpoint_is_noticed(
    part: str, noticed: set[str], graphs: Callable[..., Path], other_graphs: Path, prove: Prove, tmp_path: Path
) -> None:
    found = prove(mixed(tmp_path / "mixed", graphs("cpu", "fp32"), other_graphs, part), precisions("fp32"))
    assert failed(found) - {"forced boxes"} == noticed


def test_a_part_of_another_checkpoint_is_noticed_at_int4_too(
    graphs: Callable[..., Path], other_graphs: Path, prove: Prove, tmp_path: Path
) -> None:
    found = prove(mixed(tmp_path / "mixed", graphs("cpu", "int4"), other_graphs, "decoder"), precisions("int4"))
    assert {"logits", "likeliest tokens"} <= failed(found)


@pytest.mark.parametrize("change", [{"mean": (0.48, 0.46, 0.41)}, {"std": (0.27, 0.26, 0.28)}])
def test_another_preprocessing_is_noticed(
    change: dict[str, Any], graphs: Callable[..., Path], spec: ImageSpec, prove: Prove
) -> None:
    assert "preprocessing" in failed(prove(graphs("cpu", "fp32"), precisions("fp32"), spec.model_copy(update=change)))


def test_memory_for_logits_is_bounded() -> None:
    """A large vocabulary's logits are compared at fewer tokens, the last among them."""
    rows = parity._rows(3000, 151_936)
    assert len(rows) * 151_936 <= parity._COMPARED_LOGITS
    assert rows[0] == 0 and rows[-1] == 2999 and len(set(rows.tolist())) == len(rows) > 100
    assert parity._rows(3000, 2048).tolist() == list(range(3000))
    assert parity._rows(1, 2048).tolist() == [0]


class TestEngine:
    @pytest.fixture
    def engine(self, checkpoint: Checkpoint, tmp_path: Path) -> Path:
        write_unproven(checkpoint.folder, tmp_path / "fp32", ExportOptions(precision=parse_precision("fp32", "cpu")))
        return tmp_path / "fp32"

    def test_it_writes_what_generate_writes_and_may_keep_its_cache(
        self, engine: Path, reference: Reference, episodes: list[Episode]
    ) -> None:
        kept, greedy = engine_checks(engine, reference, episodes)
        assert (kept.name, greedy.name) == ("kept cache", "greedy tokens")
        assert kept.passed
        assert greedy.value == parity.GREEDY_TOKENS == 24
        assert greedy.passed

    def test_one_of_another_checkpoint_writes_something_else(
        self, other_checkpoint: Checkpoint, reference: Reference, episodes: list[Episode], tmp_path: Path
    ) -> None:
        write_unproven(
            other_checkpoint.folder, tmp_path / "other", ExportOptions(precision=parse_precision("fp32", "cpu"))
        )
        kept, greedy = engine_checks(tmp_path / "other", reference, episodes)
        assert kept.passed, "it is consistent in itself"
        assert not greedy.passed

    @pytest.mark.parametrize("precision", ["int8", "int4"])
    def test_below_fp32_only_the_cache_is_compared(
        self, precision: str, checkpoint: Checkpoint, reference: Reference, episodes: list[Episode], tmp_path: Path
    ) -> None:
        options = ExportOptions(precision=parse_precision(precision, "cpu"))
        write_unproven(checkpoint.folder, tmp_path / "engine", options)
        (kept,) = engine_checks(tmp_path / "engine", reference, episodes)
        assert kept.passed

    def test_a_cache_that_is_not_right_is_noticed(
        self, engine: Path, reference: Reference, episodes: list[Episode], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Here every turn is read at positions that the kept part of it has already."""
        from wayfix.policy.engine import engine as module

        right = module.token_positions

        def from_the_start(ids: Any, grids: Any, pad: int, start: int, merge: int) -> Any:
            return right(ids, grids, pad, 0, merge)

        monkeypatch.setattr(module, "token_positions", from_the_start)
        kept = engine_checks(engine, reference, episodes)[0]
        assert kept.name == "kept cache" and not kept.passed
