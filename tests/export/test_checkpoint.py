"""A checkpoint folder is read as published, and what is wrong with one is said before anything is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from wayfix.errors import ExportError, UnreadableCheckpoint, UnsupportedModel
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.synthetic import SIZES, make_config, make_tokenizer

NORM = "model.language_model.norm.weight"
EMBEDDING = "model.language_model.embed_tokens.weight"
WithConfig = Callable[[Callable[[dict[str, Any]], None]], Path]

QWEN3_VL_4B: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 151655,
    "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16",
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560,
        "initializer_range": 0.02, "intermediate_size": 9728, "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text", "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000, "tie_word_embeddings": True, "use_cache": True, "vocab_size": 151936,
    },
    "tie_word_embeddings": True,
    "transformers_version": "4.57.0.dev0",
    "video_token_id": 151656,
    "vision_config": {
        "deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1024,
        "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 4096, "model_type": "qwen3_vl",
        "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2560, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
    "vision_end_token_id": 151653,
    "vision_start_token_id": 151652,
}  # fmt: skip
"""The config.json that Qwen3-VL-4B-Instruct was published with."""


def weights_of(folder: Path) -> dict[str, NDArray[Any]]:
    return load_file(folder / "model.safetensors")


def save_weights(folder: Path, weights: dict[str, NDArray[Any]], name: str = "model.safetensors") -> None:
    save_file(weights, folder / name, metadata={"format": "pt"})


def only_config(folder: Path, config: dict[str, Any]) -> Path:
    """A checkpoint with one small weight."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_weights(folder, {"a": np.zeros(1, np.float32)})
    return folder


def as_transformers_5(config: dict[str, Any]) -> None:
    text = config["text_config"]
    text["rope_parameters"] = {**text.pop("rope_scaling"), "rope_theta": text.pop("rope_theta")}


class TestConfig:
    def test_published_and_transformers_5_forms_mean_the_same(
        self, checkpoint: Checkpoint, with_config: WithConfig
    ) -> None:
        assert Checkpoint(with_config(as_transformers_5)).shape == checkpoint.shape

    def test_a_config_that_transformers_saves_means_the_same(self, checkpoint: Checkpoint, copied: Path) -> None:
        transformers = pytest.importorskip("transformers")
        config = transformers.AutoConfig.from_pretrained(checkpoint.folder)
        config.save_pretrained(copied)
        assert "rope_parameters" in json.loads((copied / "config.json").read_text())["text_config"]
        assert Checkpoint(copied).shape == checkpoint.shape

    def test_qwen3_vl_4b_is_read(self, tmp_path: Path) -> None:
        shape = Checkpoint(only_config(tmp_path / "c", QWEN3_VL_4B)).shape
        text, vision = shape.text_config, shape.vision_config
        assert (text.num_hidden_layers, text.hidden_size, text.vocab_size) == (36, 2560, 151936)
        assert (text.rope_theta, text.mrope_section, text.max_position_embeddings) == (5e6, (24, 20, 20), 262144)
        assert (vision.depth, vision.head_dim, vision.patch_values) == (24, 64, 1536)
        assert vision.deepstack_visual_indexes == (5, 11, 17)
        assert (shape.image_token_id, shape.tie_word_embeddings) == (151655, True)

    def test_the_synthetic_4b_has_the_published_dimensions(self, tmp_path: Path) -> None:
        config = make_config(*SIZES["4b"], make_tokenizer(151936), "bfloat16")
        ours = Checkpoint(only_config(tmp_path / "ours", config)).shape
        assert ours == Checkpoint(only_config(tmp_path / "published", QWEN3_VL_4B)).shape

    def test_tying_may_be_said_in_the_text_config_alone(self, with_config: WithConfig) -> None:
        folder = with_config(lambda config: config.pop("tie_word_embeddings"))
        assert Checkpoint(folder).shape.tie_word_embeddings

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda c: c.update(model_type="qwen2_5_vl"), "qwen2_5_vl"),
            (lambda c: c.pop("model_type"), "None"),
            (lambda c: c.update(quantization_config={"quant_method": "fp8"}), "quantized already"),
            (lambda c: c.pop("vision_config"), "vision_config"),
            (lambda c: c.update(text_config=[1]), "text_config"),
            (lambda c: (c.pop("tie_word_embeddings"), c.update(text_config=[1])), "text_config"),
            (lambda c: c["text_config"].pop("head_dim"), "text_config.head_dim"),
            (lambda c: c["text_config"].update(num_hidden_layers=0), "text_config.num_hidden_layers"),
            (lambda c: c["text_config"].update(attention_bias=True), "attention biases"),
            (lambda c: c["text_config"].update(hidden_act="gelu"), "silu"),
            (lambda c: c["text_config"].update(num_key_value_heads=3), "heads"),
            (lambda c: c["text_config"].pop("rope_scaling"), "mrope_section"),
            (lambda c: c["text_config"].update(rope_scaling="yarn"), "rotary"),
            (lambda c: c["text_config"]["rope_scaling"].update(rope_type="yarn"), "yarn"),
            (lambda c: c["text_config"]["rope_scaling"].update(mrope_interleaved=False), "interleaved: False"),
            (lambda c: c["text_config"]["rope_scaling"].update(mrope_section=[6, 6, 6]), "rotary sections"),
            (lambda c: c["vision_config"].update(hidden_act="quick_gelu"), "gelu_pytorch_tanh"),
            (lambda c: c["vision_config"].update(num_position_embeddings=2303), "square"),
            (lambda c: c["vision_config"].update(deepstack_visual_indexes=[]), "DeepStack"),
            (lambda c: c["vision_config"].update(deepstack_visual_indexes=[0, 4]), "DeepStack"),
            (lambda c: c["vision_config"].update(deepstack_visual_indexes=[1, 1]), "DeepStack"),
        ],
    )
    def test_a_model_that_cannot_be_exported_is_refused_with_the_reason(
        self, with_config: WithConfig, change: Callable[[dict[str, Any]], None], said: str
    ) -> None:
        folder = with_config(change)
        with pytest.raises(UnsupportedModel, match=said) as caught:
            Checkpoint(folder)
        assert str(folder) in str(caught.value)


class TestWeights:
    @pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
    def test_every_floating_type_is_read_as_float32(self, copied: Path, kind: Any) -> None:
        stored = weights_of(copied)
        stored[NORM] = stored[NORM].astype(kind)
        save_weights(copied, stored)
        read = Checkpoint(copied).weight(NORM)
        assert read.dtype == np.float32
        assert np.array_equal(read, stored[NORM].astype(np.float32))

    @pytest.mark.parametrize("kind", [np.int8, np.uint8, ml_dtypes.float8_e4m3fn])
    def test_a_type_that_needs_scales_is_refused(self, copied: Path, kind: Any) -> None:
        stored = weights_of(copied)
        stored[NORM] = stored[NORM].astype(kind)
        save_weights(copied, stored)
        with pytest.raises(UnsupportedModel, match=NORM):
            Checkpoint(copied).weight(NORM)

    def test_shards_are_read_by_their_index(self, checkpoint: Checkpoint, copied: Path) -> None:
        stored = weights_of(copied)
        (copied / "model.safetensors").unlink()
        names = sorted(stored)
        # In turn, so that reading in order goes from shard to shard.
        where = {name: f"model-0000{number % 3 + 1}-of-00003.safetensors" for number, name in enumerate(names)}
        for file in sorted(set(where.values())):
            save_weights(copied, {name: stored[name] for name in names if where[name] == file}, file)
        (copied / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        sharded = Checkpoint(copied)
        for name in names:
            assert np.array_equal(sharded.weight(name), checkpoint.weight(name))
        assert sharded.weight_count() == checkpoint.weight_count() == sum(array.size for array in stored.values())
        assert sharded.weight_bytes() >= sum(array.nbytes for array in stored.values())

    def test_a_tied_output_is_the_embedding(self, checkpoint: Checkpoint) -> None:
        assert checkpoint.shape.tie_word_embeddings
        assert checkpoint.output_name == EMBEDDING

    def test_an_output_of_its_own_is_used_where_embeddings_are_not_tied(
        self, with_config: WithConfig, checkpoint: Checkpoint
    ) -> None:
        folder = with_config(lambda config: config.update(tie_word_embeddings=False))
        assert Checkpoint(folder).output_name == EMBEDDING, "there is no other"
        save_weights(folder, {**weights_of(folder), "lm_head.weight": checkpoint.weight(EMBEDDING) + 1})
        assert Checkpoint(folder).output_name == "lm_head.weight"

    def test_an_output_that_the_config_calls_tied_is_left_aside(self, copied: Path) -> None:
        save_weights(copied, {**weights_of(copied), "lm_head.weight": np.zeros((2, 2), np.float32)})
        assert Checkpoint(copied).output_name == EMBEDDING


class TestDamage:
    def test_a_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UnreadableCheckpoint, match=r"no folder .*nowhere"):
            Checkpoint(tmp_path / "nowhere")

    def test_a_file_in_place_of_a_folder(self, checkpoint_folder: Path) -> None:
        with pytest.raises(UnreadableCheckpoint, match="no folder"):
            Checkpoint(checkpoint_folder / "model.safetensors")

    def test_a_folder_without_config(self, tmp_path: Path) -> None:
        with pytest.raises(UnreadableCheckpoint, match=r"config\.json cannot be read"):
            Checkpoint(tmp_path)

    @pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe", b"[1]", b"null"])
    @pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
    def test_json_that_is_none(self, copied: Path, name: str, content: bytes) -> None:
        (copied / name).write_bytes(content)
        with pytest.raises(UnreadableCheckpoint, match=name):
            Checkpoint(copied)

    @pytest.mark.parametrize("index", [{}, {"weight_map": [1]}, {"weight_map": {NORM: 3}}])
    def test_an_index_that_maps_nothing(self, copied: Path, index: dict[str, Any]) -> None:
        (copied / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(UnreadableCheckpoint, match="weight_map"):
            Checkpoint(copied)

    def test_no_weights(self, copied: Path) -> None:
        (copied / "model.safetensors").unlink()
        with pytest.raises(UnreadableCheckpoint, match=r"model\.safetensors"):
            Checkpoint(copied)

    def test_a_missing_shard(self, copied: Path) -> None:
        where = {NORM: "model.safetensors", EMBEDDING: "model-00002.safetensors"}
        (copied / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        with pytest.raises(UnreadableCheckpoint, match=r"model-00002\.safetensors; was the download complete"):
            Checkpoint(copied)

    @pytest.mark.parametrize("kept", [0, 4, 200, 1_000_000])
    def test_a_truncated_file(self, copied: Path, kept: int) -> None:
        path = copied / "model.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(UnreadableCheckpoint, match="no whole safetensors file"):
            Checkpoint(copied)

    def test_a_truncated_shard_is_told_when_it_is_read(self, copied: Path) -> None:
        where = {NORM: "model.safetensors"}
        (copied / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        path = copied / "model.safetensors"
        path.write_bytes(path.read_bytes()[:1000])
        checkpoint = Checkpoint(copied)
        with pytest.raises(UnreadableCheckpoint, match="no whole safetensors file"):
            checkpoint.weight(NORM)

    def test_a_missing_weight(self, copied: Path) -> None:
        stored = weights_of(copied)
        del stored[NORM]
        save_weights(copied, stored)
        checkpoint = Checkpoint(copied)
        assert not checkpoint.has(NORM)
        with pytest.raises(UnreadableCheckpoint, match=f"has no weight {NORM}"):
            checkpoint.weight(NORM)

    def test_an_index_that_names_the_wrong_shard(self, copied: Path) -> None:
        (copied / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
        with pytest.raises(UnreadableCheckpoint, match="lacks the weight a"):
            Checkpoint(copied).weight("a")

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_values_that_are_not_finite(self, copied: Path, value: float) -> None:
        stored = weights_of(copied)
        stored[NORM][5] = value
        save_weights(copied, stored)
        with pytest.raises(UnreadableCheckpoint, match=f"{NORM}.*not finite"):
            Checkpoint(copied).weight(NORM)

    def test_every_error_is_one_of_an_export(self) -> None:
        assert issubclass(UnreadableCheckpoint, ExportError)
        assert issubclass(UnsupportedModel, ExportError)


class TestSourceHash:
    def test_it_does_not_depend_on_where_the_checkpoint_is(self, checkpoint: Checkpoint, copied: Path) -> None:
        assert Checkpoint(copied).source_hash() == checkpoint.source_hash()

    def test_it_is_a_sha256(self, checkpoint: Checkpoint) -> None:
        assert len(bytes.fromhex(checkpoint.source_hash())) == 32

    def test_a_byte_of_a_weight_changes_it(self, checkpoint: Checkpoint, copied: Path) -> None:
        path = copied / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        assert Checkpoint(copied).source_hash() != checkpoint.source_hash()

    @pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
    def test_config_and_tokenizer_change_it(self, checkpoint: Checkpoint, copied: Path, name: str) -> None:
        path = copied / name
        path.write_text(path.read_text() + "\n")
        assert Checkpoint(copied).source_hash() != checkpoint.source_hash()

    def test_nothing_else_does(self, checkpoint: Checkpoint, copied: Path) -> None:
        (copied / "README.md").write_text("Another text.")
        (copied / "generation_config.json").unlink()
        (copied / "notes.txt").write_text("Mine.")
        assert Checkpoint(copied).source_hash() == checkpoint.source_hash()
