"""A random checkpoint has the layout of Qwen3-VL's own: what works with it works with those."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from wayfix.agent.protocol import SYSTEM_TEXT
from wayfix_export import synthetic
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.synthetic import PLAIN_TOKENS, SIZES, SPECIAL_TOKENS, make_tokenizer, write_checkpoint

QWEN3_IDS = {
    "<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645, "<|vision_start|>": 151652,
    "<|vision_end|>": 151653, "<|image_pad|>": 151655, "<|video_pad|>": 151656, "<tool_call>": 151657,
    "</tool_call>": 151658, "<think>": 151667, "</think>": 151668,
}  # fmt: skip


@pytest.fixture(scope="module", params=[2048, 4096, 151_936])
def sized(request: pytest.FixtureRequest) -> tuple[Tokenizer, int]:
    """A tokenizer, and the width of the logits that it is for."""
    return make_tokenizer(request.param), request.param


class TestTokenizer:
    def test_every_token_has_an_id_of_its_own_below_the_logits_width(self, sized: tuple[Tokenizer, int]) -> None:
        tokenizer, width = sized
        ids = list(tokenizer.get_vocab(with_added_tokens=True).values())
        assert len(set(ids)) == len(ids)
        assert sorted(ids) == list(range(len(ids))) and len(ids) <= width

    def test_added_tokens_stand_behind_the_vocabulary_in_qwen3s_order(self, sized: tuple[Tokenizer, int]) -> None:
        tokenizer, _ = sized
        added = [tokenizer.token_to_id(token) for token in (*SPECIAL_TOKENS, *PLAIN_TOKENS)]
        assert added == list(range(added[0], added[0] + len(added)))
        assert added[-1] == tokenizer.get_vocab_size() - 1

    def test_at_qwen3s_size_they_have_qwen3s_ids(self) -> None:
        tokenizer = make_tokenizer(151_936)
        assert {token: tokenizer.token_to_id(token) for token in QWEN3_IDS} == QWEN3_IDS

    def test_text_is_cut_and_joined_again(self, sized: tuple[Tokenizer, int]) -> None:
        tokenizer, _ = sized
        for text in (SYSTEM_TEXT, "Ġ#1500 Find: the café at 12 Rue Äußere 北.\n\n  x"):
            assert tokenizer.decode(tokenizer.encode(text).ids) == text

    def test_only_special_tokens_vanish_from_decoded_text(self, sized: tuple[Tokenizer, int]) -> None:
        tokenizer, _ = sized
        ids = tokenizer.encode("<|im_start|><tool_call>a</tool_call><|im_end|>").ids
        assert tokenizer.decode(ids) == "<tool_call>a</tool_call>"


class TestCheckpoint:
    @pytest.mark.parametrize("size", SIZES)
    def test_weights_have_the_names_and_shapes_that_transformers_expects(self, size: str) -> None:
        pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        import torch
        from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig

        config = synthetic.make_config(*SIZES[size], make_tokenizer(2048), "float32")
        with torch.device("meta"):
            model = transformers.Qwen3VLForConditionalGeneration(Qwen3VLConfig.from_dict(config))
        wanted = {name: tuple(value.shape) for name, value in model.named_parameters()}
        assert dict(synthetic._weight_shapes(config)) == {
            name: shape for name, shape in wanted.items() if name != "lm_head.weight"
        }

    def test_transformers_misses_no_weight_and_leaves_none(self, reference: Any, checkpoint: Checkpoint) -> None:
        state = reference.model.state_dict()
        for name in checkpoint._files:
            assert np.array_equal(state[name].numpy(), checkpoint.weight(name)), name

    def test_the_same_seed_gives_the_same_checkpoint_and_another_another(
        self, checkpoint: Checkpoint, other_checkpoint: Checkpoint, tmp_path: Path
    ) -> None:
        write_checkpoint(tmp_path / "tiny", "tiny")
        assert Checkpoint(tmp_path / "tiny").source_hash() == checkpoint.source_hash()
        assert other_checkpoint.source_hash() != checkpoint.source_hash()

    def test_half_of_the_bytes_in_float16(self, checkpoint: Checkpoint, tmp_path: Path) -> None:
        write_checkpoint(tmp_path / "half", "tiny", dtype=np.float16)
        half = Checkpoint(tmp_path / "half")
        assert half.weight_bytes() < 0.6 * checkpoint.weight_bytes()
        name = "model.language_model.norm.weight"
        assert np.array_equal(half.weight(name), checkpoint.weight(name).astype(np.float16).astype(np.float32))

    def test_a_large_one_is_written_in_shards(
        self, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(synthetic, "_SHARD_BYTES", 1_000_000)
        write_checkpoint(tmp_path / "tiny", "tiny")
        sharded = Checkpoint(tmp_path / "tiny")
        index = json.loads((tmp_path / "tiny" / "model.safetensors.index.json").read_text())
        assert len(set(index["weight_map"].values())) >= 3
        assert set(index["weight_map"]) == set(checkpoint._files)
        for name in index["weight_map"]:
            assert np.array_equal(sharded.weight(name), checkpoint.weight(name))
