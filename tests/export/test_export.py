"""A checkpoint becomes an engine folder that is whole and proved, or nothing is written."""

from __future__ import annotations

import datetime
import errno
import hashlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wayfix
from wayfix.errors import (
    EngineUnsupported,
    InvalidOption,
    ParityFailed,
    StorageFailed,
    StorageFull,
    UnreadableCheckpoint,
    UnsupportedModel,
    WayfixError,
)
from wayfix.policy.engine.engine import Engine
from wayfix.policy.engine.images import ImageSpec
from wayfix.policy.engine.manifest import EngineManifest, Precisions, Target, read_manifest
from wayfix.views.view import ImageSizes
from wayfix_export import export, tensorrt
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.checks import Check
from wayfix_export.export import (
    DEFAULT_PRECISION,
    Exported,
    ExportOptions,
    export_checkpoint,
    parse_precision,
    write_unproven,
)
from wayfix_export.profiles import profiles_of

Export = Callable[[Target, str], Exported]
SMALL = ExportOptions(sizes=ImageSizes(320, 256, 256), episodes=1, parity="whole")
GRAPHS = {f"{part}.onnx{suffix}" for part in ("vision", "embedding", "decoder") for suffix in ("", ".data")}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def there(checkpoint_folder: Path, tmp_path: Path) -> Path:
    """An engine that is there already."""
    write_unproven(checkpoint_folder, tmp_path / "out" / "engine", SMALL)
    return tmp_path / "out" / "engine"


class TestEngine:
    """Both are made by the same steps and proved by the same comparisons; what runs them differs."""

    targets = pytest.mark.parametrize(("target", "precision"), [("cpu", "fp32"), ("jetson-orin", "fp16")])

    @targets
    def test_it_holds_graphs_words_and_a_manifest_and_nothing_else(
        self, target: Target, precision: str, exported: Export
    ) -> None:
        done = exported(target, precision)
        assert {path.name for path in done.folder.iterdir()} == {
            *GRAPHS, "tokenizer.json", "chat_template.jinja", "engine.json",
        }  # fmt: skip
        assert [path.name for path in done.folder.parent.iterdir()] == [done.folder.name]

    @targets
    def test_every_file_is_the_one_that_the_manifest_lists(
        self, target: Target, precision: str, exported: Export
    ) -> None:
        done = exported(target, precision)
        listed = json.loads((done.folder / "engine.json").read_text())["files"]
        actual = {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in content(done.folder).items()
            if name != "engine.json"
        }
        assert listed == actual
        assert read_manifest(done.folder) == done.manifest

    @targets
    def test_the_manifest_says_where_it_came_from(
        self, target: Target, precision: str, exported: Export, checkpoint: Checkpoint
    ) -> None:
        manifest = exported(target, precision).manifest
        assert (manifest.target, manifest.flavour) == (target, "cpu" if target == "cpu" else "trt")
        assert manifest.source.name == checkpoint.folder.name
        assert manifest.source.sha256 == checkpoint.source_hash()
        assert manifest.source.weights_licence == "apache-2.0"
        assert manifest.versions["wayfix"] == wayfix.__version__
        for name in ("onnx", "onnxruntime", "numpy", "tokenizers", "torch", "transformers"):
            assert manifest.versions[name] == importlib.metadata.version(name)
        made = datetime.datetime.fromisoformat(manifest.created)
        assert made.tzinfo is not None and made <= datetime.datetime.now(datetime.timezone.utc)
        assert manifest.hardware is None

    @targets
    def test_the_manifest_says_what_the_runtime_must_know(
        self, target: Target, precision: str, exported: Export, checkpoint: Checkpoint, spec: ImageSpec
    ) -> None:
        manifest = exported(target, precision).manifest
        text, shape = manifest.text, checkpoint.shape.text_config
        assert (text.layers, text.hidden, text.heads, text.kv_heads) == (4, 64, 4, 2)
        assert (text.head_dim, text.vocabulary, text.max_tokens) == (32, 2048, 8192)
        assert (text.rope_theta, text.mrope_section) == (shape.rope_theta, shape.mrope_section)
        assert manifest.vision.model_dump() == {"head_dim": 32, "rope_theta": 10000.0, "table_side": 48, "taps": 2}
        assert manifest.tokens.image == checkpoint.shape.image_token_id
        assert manifest.tokens.end == checkpoint.json("generation_config.json")["eos_token_id"][0]
        assert manifest.image == spec
        assert manifest.sizes.model_dump() == {"overview": 320, "zoom": 256, "oblique": 256}

    def test_precision_and_profiles(self, exported: Export, checkpoint: Checkpoint, spec: ImageSpec) -> None:
        cpu, jetson = (exported(*what).manifest for what in (("cpu", "fp32"), ("jetson-orin", "fp16")))
        assert cpu.precision == Precisions(vision="fp32", embedding="fp32", decoder="fp32")
        assert jetson.precision == Precisions(vision="fp16", embedding="fp16", decoder="fp16")
        assert cpu.profiles == {}
        assert jetson.profiles == profiles_of(checkpoint.shape, spec, ImageSizes(320, 256, 256))

    @targets
    def test_the_manifest_keeps_every_comparison(self, target: Target, precision: str, exported: Export) -> None:
        done = exported(target, precision)
        whole_engine = {"kept cache", "greedy tokens"} if target == "cpu" else set()
        assert set(done.manifest.parity) == {
            "preprocessing", "vision features", "deepstack features", "logits", "likeliest tokens", "boxes, engine",
            "boxes, checkpoint", "forced boxes", *whole_engine,
        }  # fmt: skip
        for check in done.checks:
            kept = done.manifest.parity[check.name]
            bound = "at_least" if check.at_least else "at_most"
            assert kept == {"value": check.value, bound: check.limit, "what": check.note}
            assert check.passed

    def test_cpu_opens_here(self, exported: Export) -> None:
        engine = Engine(exported("cpu", "fp32").folder)
        assert engine.manifest.precision.decoder == "fp32"

    def test_jetson_does_not_and_says_why(self, exported: Export) -> None:
        with pytest.raises(EngineUnsupported, match="TensorRT"):
            Engine(exported("jetson-orin", "fp16").folder)

    def test_words_are_the_checkpoints_own(self, exported: Export, checkpoint: Checkpoint) -> None:
        for name in ("tokenizer.json", "chat_template.jinja"):
            made = (exported("cpu", "fp32").folder / name).read_bytes()
            assert made == (checkpoint.folder / name).read_bytes()


class TestProof:
    @pytest.fixture(autouse=True)
    def _quick(self, recorded: Any, few_boxes: None) -> None:
        """Each of these exports is proved in full, but for the number of boxes."""

    @pytest.fixture
    def broken(self, other_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        """The decoder is written from another checkpoint's weights."""
        right = export.write_decoder

        def wrong(_: Checkpoint, *more: Any, **named: Any) -> None:
            right(other_checkpoint, *more, **named)

        monkeypatch.setattr(export, "write_decoder", wrong)

    @pytest.mark.parametrize("target", ["cpu", "jetson-orin"])
    def test_an_engine_that_says_something_else_is_not_written(
        self, target: Target, broken: None, checkpoint_folder: Path, tmp_path: Path
    ) -> None:
        options = ExportOptions(target=target, sizes=SMALL.sizes, episodes=1, parity="whole")
        with pytest.raises(ParityFailed, match=r"nothing was written.*logits [0-9.]+, allowed 0\.") as caught:
            export_checkpoint(checkpoint_folder, tmp_path / "out" / "engine", options)
        assert "preprocessing" not in str(caught.value)
        assert list((tmp_path / "out").iterdir()) == []

    def test_the_engine_that_is_there_stays(self, broken: None, checkpoint_folder: Path, there: Path) -> None:
        before = content(there)
        options = ExportOptions(sizes=SMALL.sizes, episodes=1, parity="whole", overwrite=True)
        with pytest.raises(ParityFailed):
            export_checkpoint(checkpoint_folder, there, options)
        assert content(there) == before
        assert [path.name for path in there.parent.iterdir()] == ["engine"]

    def test_every_failed_comparison_is_named_with_its_limit(
        self, checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from wayfix_export import checks

        monkeypatch.setitem(checks.KEPT_CACHE, "int8", -1.0)
        monkeypatch.setattr(checks, "PREPROCESSING_255", -2.0)
        with pytest.raises(ParityFailed, match=r"preprocessing 0, allowed -2; kept cache .*, allowed -1"):
            export_checkpoint(checkpoint_folder, tmp_path / "engine", SMALL)
        assert list(tmp_path.iterdir()) == []

    def test_the_usual_precision_of_each_target_passes(self, checkpoint_folder: Path, tmp_path: Path) -> None:
        for target in ("cpu", "jetson-thor"):
            options = ExportOptions(target=target, sizes=SMALL.sizes, episodes=1, parity="whole")
            done = export_checkpoint(checkpoint_folder, tmp_path / target, options)
            assert done.manifest.precision == DEFAULT_PRECISION[target]

    def test_steps_are_told(self, checkpoint_folder: Path, tmp_path: Path) -> None:
        said: list[str] = []
        export_checkpoint(checkpoint_folder, tmp_path / "engine", SMALL, said.append)
        for step in ("recording episodes", "writing the decoder", "logits", "boxes", "the engine itself"):
            assert step in said


class TestLayers:
    """For checkpoints too large to be in memory beside their engine."""

    def options(self, target: Target, precision: str) -> ExportOptions:
        return ExportOptions(
            target=target, precision=parse_precision(precision, target), sizes=SMALL.sizes, episodes=1, parity="layers"
        )

    @pytest.fixture(autouse=True)
    def _quick(self, recorded: Any) -> None:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")

    @pytest.mark.slow
    @pytest.mark.parametrize(("target", "precision"), [("cpu", "fp32"), ("jetson-orin", "int4")])
    def test_a_sound_engine_passes_as_it_does_whole(
        self, target: Target, precision: str, checkpoint_folder: Path, tmp_path: Path
    ) -> None:
        said: list[str] = []
        done = export_checkpoint(checkpoint_folder, tmp_path / "engine", self.options(target, precision), said.append)
        assert [check.name for check in done.checks] == [
            "vision features", "embeddings", "layers", "logits", "likeliest tokens",
        ]  # fmt: skip
        assert set(done.manifest.parity) == {check.name for check in done.checks}
        assert any(line.startswith("layer 4 of 4: relative L2") for line in said)
        assert {path.name for path in done.folder.iterdir()} == {
            *GRAPHS, "tokenizer.json", "chat_template.jinja", "engine.json",
        }  # fmt: skip

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("weights", "noticed"),
        [
            (["layers.2.mlp.down_proj"], ["layers"]),
            (
                ["embed_tokens", "deepstack_merger_list.1.linear_fc2"],
                ["vision features", "embeddings", "logits", "likeliest tokens"],
            ),
        ],
    )
    def test_a_wrong_weight_is_noticed_where_it_is(
        self,
        weights: list[str],
        noticed: list[str],
        checkpoint_folder: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        right = Checkpoint.weight

        def wrong(checkpoint: Checkpoint, name: str) -> Any:
            values = right(checkpoint, name)
            return values[::-1].copy() if any(name.endswith(f"{part}.weight") for part in weights) else values

        # The comparison runs in a process of its own and reads the weights as they are.
        monkeypatch.setattr(Checkpoint, "weight", wrong)
        with pytest.raises(ParityFailed) as caught:
            export_checkpoint(checkpoint_folder, tmp_path / "engine", self.options("cpu", "fp32"))
        said = str(caught.value).split(": ", 1)[1].split("; ")
        assert [part.split(", allowed")[0].rpartition(" ")[0] for part in said] == noticed
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(("available", "whole"), [(10**12, True), (10**6, False), (None, True)])
    def test_which_of_the_two_follows_from_memory(
        self,
        available: int | None,
        whole: bool,
        checkpoint_folder: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        from wayfix_export import layer_parity, parity, reference

        class Whole:
            def __init__(self, *_: Any) -> None:
                """Nothing is compared."""

            def run(self, *_: Any) -> list[Check]:
                return [Check("whole", 0, 1)]

        monkeypatch.setattr(export, "available_bytes", lambda: available)
        monkeypatch.setattr(parity, "Parity", Whole)
        monkeypatch.setattr(parity, "engine_checks", lambda *_: [])
        monkeypatch.setattr(reference, "Reference", lambda _: None)
        monkeypatch.setattr(layer_parity, "layer_checks", lambda *_: [Check("layers", 0, 1)])
        options = ExportOptions(sizes=SMALL.sizes, episodes=1, parity="auto")
        done = export_checkpoint(checkpoint_folder, tmp_path / "engine", options)
        assert [check.name for check in done.checks] == ["whole" if whole else "layers"]


class TestPlace:
    def test_an_engine_is_not_replaced_unasked(self, checkpoint_folder: Path, there: Path) -> None:
        before = content(there)
        with pytest.raises(InvalidOption, match=r"holds an engine already.*--overwrite"):
            export_checkpoint(checkpoint_folder, there, SMALL)
        assert content(there) == before

    def test_it_is_when_asked(self, checkpoint_folder: Path, there: Path, proved: None) -> None:
        (there / "decoder.onnx").write_bytes(b"old")
        done = export_checkpoint(checkpoint_folder, there, ExportOptions(sizes=SMALL.sizes, overwrite=True))
        assert read_manifest(there) == done.manifest
        assert [path.name for path in there.parent.iterdir()] == ["engine"]

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_what_is_no_engine_is_never_replaced(
        self, overwrite: bool, checkpoint_folder: Path, tmp_path: Path, proved: None
    ) -> None:
        folder, file = tmp_path / "photos", tmp_path / "notes.txt"
        folder.mkdir()
        (folder / "cat.jpg").write_bytes(b"cat")
        file.write_text("mine")
        for out in (folder, file):
            with pytest.raises(InvalidOption, match="exists and is no engine"):
                export_checkpoint(checkpoint_folder, out, ExportOptions(overwrite=overwrite))
        assert content(folder) == {"cat.jpg": b"cat"} and file.read_text() == "mine"

    def test_an_empty_folder_may_be_filled(self, checkpoint_folder: Path, tmp_path: Path, proved: None) -> None:
        (tmp_path / "engine").mkdir()
        export_checkpoint(checkpoint_folder, tmp_path / "engine", SMALL)
        assert (tmp_path / "engine" / "engine.json").is_file()

    def test_folders_above_are_made(self, checkpoint_folder: Path, tmp_path: Path, proved: None) -> None:
        done = export_checkpoint(checkpoint_folder, tmp_path / "a" / "b" / "engine", SMALL)
        assert done.folder == tmp_path / "a" / "b" / "engine" and done.folder.is_dir()

    def test_the_working_folder_itself_is_a_place_like_any(
        self, checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proved: None
    ) -> None:
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        done = export_checkpoint(checkpoint_folder, Path(), SMALL)
        assert (tmp_path / "here" / "engine.json").is_file() and done.folder == tmp_path / "here"

    def test_what_a_killed_export_left_is_no_hindrance(
        self, checkpoint_folder: Path, tmp_path: Path, proved: None
    ) -> None:
        (tmp_path / ".engine.part").mkdir()
        (tmp_path / ".engine.part" / "rest.onnx").write_bytes(b"half")
        done = export_checkpoint(checkpoint_folder, tmp_path / "engine", SMALL)
        assert "rest.onnx" not in done.manifest.files
        assert [path.name for path in tmp_path.iterdir()] == ["engine"]

    def test_the_checkpoint_is_not_touched(self, copied: Path, tmp_path: Path, proved: None) -> None:
        before = content(copied)
        export_checkpoint(copied, tmp_path / "engine", SMALL)
        assert content(copied) == before

    def test_a_disk_that_has_no_room_is_told_first(
        self, checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proved: None
    ) -> None:
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1_000_000))
        with pytest.raises(StorageFull, match=r"need 0\.0 GB, 0\.0 GB are free at"):
            export_checkpoint(checkpoint_folder, tmp_path / "engine", SMALL)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("error", "raised"),
        [
            (OSError(errno.ENOSPC, "No space left on device"), StorageFull),
            (OSError(errno.EIO, "Input/output error"), StorageFailed),
            (KeyboardInterrupt(), KeyboardInterrupt),
            (UnreadableCheckpoint("a weight is missing"), UnreadableCheckpoint),
        ],
    )
    @pytest.mark.parametrize("step", ["write_decoder", "_prove"])
    def test_what_ends_an_export_leaves_all_as_it_was(
        self,
        step: str,
        error: BaseException,
        raised: type[BaseException],
        checkpoint_folder: Path,
        there: Path,
        monkeypatch: pytest.MonkeyPatch,
        proved: None,
    ) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise error

        before = content(there)
        monkeypatch.setattr(export, step, fail)
        for out in (there, there.parent / "new"):
            with pytest.raises(raised):
                export_checkpoint(checkpoint_folder, out, ExportOptions(sizes=SMALL.sizes, overwrite=True))
        assert content(there) == before
        assert [path.name for path in there.parent.iterdir()] == ["engine"]

    @pytest.mark.parametrize(
        ("error", "raised"), [(OSError(errno.EIO, "Input/output error"), StorageFailed), (KeyboardInterrupt(),) * 2]
    )
    def test_the_old_engine_is_put_back_where_the_new_one_cannot_take_its_place(
        self,
        error: BaseException,
        raised: Any,
        checkpoint_folder: Path,
        there: Path,
        monkeypatch: pytest.MonkeyPatch,
        proved: None,
    ) -> None:
        rename = Path.rename

        def fail(path: Path, target: Path) -> Path:
            if path.name == ".engine.part":
                raise error
            return rename(path, target)

        before = content(there)
        monkeypatch.setattr(Path, "rename", fail)
        with pytest.raises(raised if isinstance(raised, type) else type(raised)):
            export_checkpoint(checkpoint_folder, there, ExportOptions(sizes=SMALL.sizes, overwrite=True))
        assert content(there) == before
        assert [path.name for path in there.parent.iterdir()] == ["engine"]

    def test_a_place_that_cannot_be_written_to_is_told(self, checkpoint_folder: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StorageFailed, match="file/engine could not be written"):
            export_checkpoint(checkpoint_folder, tmp_path / "file" / "engine", SMALL)


class TestCheckpointFolder:
    """What an export takes from a checkpoint besides weights, looked at before anything is written."""

    @pytest.fixture(autouse=True)
    def _quick(self, proved: None) -> None:
        """What is not refused is not compared either."""

    def fails(self, folder: Path, tmp_path: Path) -> WayfixError:
        with pytest.raises(WayfixError) as caught:
            export_checkpoint(folder, tmp_path / "out" / "engine")
        assert not (tmp_path / "out").exists()
        return caught.value

    def test_no_checkpoint(self, tmp_path: Path) -> None:
        assert isinstance(self.fails(tmp_path / "nowhere", tmp_path), UnreadableCheckpoint)

    def test_another_kind_of_model(self, with_config: Any, tmp_path: Path) -> None:
        folder = with_config(lambda config: config.update(model_type="llama"))
        error = self.fails(folder, tmp_path)
        assert isinstance(error, UnsupportedModel) and "llama" in str(error)

    @pytest.mark.parametrize("name", ["chat_template.json", "tokenizer_config.json"])
    def test_the_template_is_found_where_older_checkpoints_have_it(
        self, name: str, copied: Path, tmp_path: Path
    ) -> None:
        template = (copied / "chat_template.jinja").read_text()
        (copied / "chat_template.jinja").unlink()
        (copied / name).write_text(json.dumps({"chat_template": template}))
        write_unproven(copied, tmp_path / "engine", SMALL)
        assert (tmp_path / "engine" / "chat_template.jinja").read_text() == template

    def test_no_template(self, copied: Path, tmp_path: Path) -> None:
        (copied / "chat_template.jinja").unlink()
        error = self.fails(copied, tmp_path)
        assert isinstance(error, UnreadableCheckpoint) and "no chat template" in str(error)

    @pytest.mark.parametrize("text", ["", "{", '{"model": 1}'])
    def test_a_tokenizer_that_is_none(self, text: str, copied: Path, tmp_path: Path) -> None:
        (copied / "tokenizer.json").write_text(text)
        error = self.fails(copied, tmp_path)
        assert isinstance(error, UnreadableCheckpoint) and "tokenizer.json is no tokenizer" in str(error)

    def test_no_tokenizer(self, copied: Path, tmp_path: Path) -> None:
        (copied / "tokenizer.json").unlink()
        assert isinstance(self.fails(copied, tmp_path), UnreadableCheckpoint)

    def test_no_preprocessing(self, copied: Path, tmp_path: Path) -> None:
        (copied / "preprocessor_config.json").unlink()
        assert isinstance(self.fails(copied, tmp_path), UnreadableCheckpoint)

    def test_another_preprocessing(self, copied: Path, tmp_path: Path) -> None:
        path = copied / "preprocessor_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "do_resize": False}))
        error = self.fails(copied, tmp_path)
        assert isinstance(error, UnsupportedModel) and "do_resize" in str(error)

    @pytest.mark.parametrize(
        ("card", "licence"),
        [
            ("---\nlicense: other\n---\n", "other"),
            ("No header.\n", None),
            (None, None),
            (b"---\nlicense: mit\n---\nCaf\xe9\n", "mit"),
        ],
    )
    def test_the_licence_is_what_the_card_says(
        self, card: str | bytes | None, licence: str | None, copied: Path, tmp_path: Path
    ) -> None:
        (copied / "README.md").unlink()
        if card is not None:
            (copied / "README.md").write_bytes(card.encode() if isinstance(card, str) else card)
        assert write_unproven(copied, tmp_path / "engine", SMALL).source.weights_licence == licence

    def test_image_sizes_are_those_it_was_trained_on(self, with_config: Any, tmp_path: Path) -> None:
        sizes = {"overview": 640, "zoom": 480, "oblique": 320}
        folder = with_config(lambda config: config.update(wayfix_image_sizes=sizes))
        assert write_unproven(folder, tmp_path / "own", ExportOptions()).sizes.model_dump() == sizes
        given = write_unproven(folder, tmp_path / "given", SMALL).sizes
        assert (given.overview, given.zoom, given.oblique) == (320, 256, 256)

    def test_image_sizes_are_the_usual_ones_where_it_says_nothing(
        self, checkpoint_folder: Path, tmp_path: Path
    ) -> None:
        sizes = write_unproven(checkpoint_folder, tmp_path / "engine", ExportOptions()).sizes
        assert (sizes.overview, sizes.zoom, sizes.oblique) == (1024, 768, 512)

    @pytest.mark.parametrize("sizes", [{"overview": "large"}, {"overview": 0}, {"mosaic": 64}, [1024, 768, 512]])
    def test_image_sizes_that_are_none(self, sizes: Any, with_config: Any, tmp_path: Path) -> None:
        folder = with_config(lambda config: config.update(wayfix_image_sizes=sizes))
        error = self.fails(folder, tmp_path)
        assert isinstance(error, UnsupportedModel) and "wayfix_image_sizes" in str(error)

    def test_episodes_are_recorded_in_the_images_and_number_asked_for(
        self, checkpoint_folder: Path, tmp_path: Path, recorded: list[Any]
    ) -> None:
        export_checkpoint(checkpoint_folder, tmp_path / "a", ExportOptions(sizes=ImageSizes(640, 320, 256), episodes=2))
        assert recorded == [(2, ImageSizes(640, 320, 256))]


class TestPrecision:
    @pytest.mark.parametrize(
        ("text", "target", "expected"),
        [
            (None, "cpu", ("fp32", "fp16", "int8")),
            ("", "jetson-orin", ("fp16", "fp16", "int4")),
            ("int4", "cpu", ("fp32", "fp16", "int4")),
            ("fp32", "cpu", ("fp32", "fp32", "fp32")),
            (" fp32 ", "jetson-thor", ("fp32", "fp32", "fp32")),
            ("decoder=fp32", "cpu", ("fp32", "fp16", "fp32")),
            ("int8,vision=int8", "cpu", ("int8", "fp16", "int8")),
            ("decoder=int4, vision=int8 , embedding=fp32", "jetson-orin", ("int8", "fp32", "int4")),
            ("fp16", "cuda", ("fp16", "fp16", "fp16")),
        ],
    )
    def test_what_is_not_named_is_as_usual(self, text: str | None, target: Target, expected: tuple[Any, ...]) -> None:
        vision, embedding, decoder = expected
        assert parse_precision(text, target) == Precisions(vision=vision, embedding=embedding, decoder=decoder)

    @pytest.mark.parametrize(
        ("text", "target", "said"),
        [
            ("fp16", "cpu", "for cpu the decoder takes fp32, int8, int4"),
            ("bf16", "cuda", "for cuda the decoder takes fp32, fp16, int8, int4"),
            ("vision=int4", "cpu", "the vision takes fp32, int8"),
            ("vision=int4", "jetson-orin", "the vision takes fp32, fp16, int8"),
            ("embedding=int8", "cpu", "the embedding takes fp32, fp16"),
            ("head=int8", "cpu", "a part of vision, embedding, decoder"),
            ("decoder=", "cpu", "PART=PRECISION"),
            ("=", "cpu", "PART=PRECISION"),
            ("int8,", "cpu", "precision ''"),
            (" ", "cpu", "precision ''"),
            ("INT8", "cpu", "precision 'INT8'"),
            ("a=b=int8", "cpu", "precision 'a=b=int8'"),
        ],
    )
    def test_what_cannot_be_is_refused_with_what_can(self, text: str, target: Target, said: str) -> None:
        with pytest.raises(InvalidOption, match=said):
            parse_precision(text, target)


class TestBuildCheck:
    def test_there_is_none_for_cpu(self, checkpoint_folder: Path, tmp_path: Path) -> None:
        with pytest.raises(InvalidOption, match="not for cpu"):
            export_checkpoint(checkpoint_folder, tmp_path / "out" / "engine", ExportOptions(build_check=True))
        assert not (tmp_path / "out").exists(), "told before any work was done"

    def test_without_tensorrt_nothing_is_begun(
        self, checkpoint_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tensorrt, "_MODULES", ("no_such_tensorrt",))
        options = ExportOptions(target="cuda", build_check=True)
        with pytest.raises(EngineUnsupported, match="pip install"):
            export_checkpoint(checkpoint_folder, tmp_path / "out" / "engine", options)
        assert not (tmp_path / "out").exists()

    @pytest.mark.slow
    def test_all_graphs_are_built(
        self, checkpoint_folder: Path, tmp_path: Path, proved: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        try:
            tensorrt.load_tensorrt()
        except EngineUnsupported as error:
            pytest.skip(str(error))
        built = []

        def build(graph: Path, *more: Any) -> Any:
            built.append(graph.name)
            return tensorrt.build_engine(graph, *more)

        monkeypatch.setattr(export, "build_engine", build)
        options = ExportOptions(target="jetson-orin", sizes=SMALL.sizes, build_check=True)
        done = export_checkpoint(checkpoint_folder, tmp_path / "engine", options)
        assert built == ["vision.onnx", "embedding.onnx", "decoder.onnx"]
        assert set(done.manifest.files) == {*GRAPHS, "tokenizer.json", "chat_template.jinja"}


class TestUnproven:
    def test_it_needs_neither_torch_nor_transformers(self, checkpoint_folder: Path, tmp_path: Path) -> None:
        code = f"""
import sys
sys.modules.update(torch=None, transformers=None)
from pathlib import Path
from wayfix_export.export import ExportOptions, write_unproven
write_unproven(Path({str(checkpoint_folder)!r}), Path({str(tmp_path / "engine")!r}), ExportOptions())
"""
        subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
        manifest = read_manifest(tmp_path / "engine")
        assert manifest.parity == {}
        assert isinstance(manifest, EngineManifest)

    def test_the_same_checkpoint_gives_the_same_files(self, checkpoint_folder: Path, tmp_path: Path) -> None:
        first, second = (write_unproven(checkpoint_folder, tmp_path / name, SMALL).files for name in "ab")
        assert first == second
