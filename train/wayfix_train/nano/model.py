"""A new nano model, and its checkpoint in the layout of Qwen3-VL's own."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import Tokenizer
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from wayfix.geo.boxes import UNIT_MAX
from wayfix_train.nano.layout import IMAGE_SPEC, TEMPLATE, make_nano_config
from wayfix_train.nano.tokenizer import number_tokens

EMBEDDING_SCALE = 0.3
POSITION_SCALE = 1.0
QUERY_GAIN = 1.5


def new_model(tokenizer: Tokenizer, seed: int = 0) -> Any:
    """Random weights that learn fast: positions and numbers begin as waves, so that near ones are alike."""
    torch.manual_seed(seed)
    config = Qwen3VLConfig.from_dict(make_nano_config(tokenizer))
    config._attn_implementation = "sdpa"
    model = Qwen3VLForConditionalGeneration(config)
    with torch.no_grad():
        table = model.model.visual.pos_embed.weight
        side = math.isqrt(len(table))
        down, across = torch.meshgrid(torch.arange(side) / side, torch.arange(side) / side, indexing="ij")
        half = table.shape[1] // 2
        waves = [_waves(axis.flatten(), half, 1.5, 24.0) for axis in (down, across)]
        table.copy_(torch.cat(waves, dim=1) * POSITION_SCALE)
        text = model.model.language_model
        embedding = text.embed_tokens.weight
        embedding.normal_(0, EMBEDDING_SCALE)
        turn = torch.linalg.qr(torch.randn(embedding.shape[1], embedding.shape[1]))[0]
        numbers = _waves(torch.arange(UNIT_MAX + 1) / UNIT_MAX, embedding.shape[1], 1.5, 150.0)
        embedding[number_tokens(tokenizer)] = numbers @ turn * math.sqrt(2) * EMBEDDING_SCALE
        for layer in text.layers:
            for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
                linear.weight.normal_(0, 0.02 / math.sqrt(2 * len(text.layers)))
            layer.self_attn.q_norm.weight.fill_(QUERY_GAIN)
            layer.self_attn.k_norm.weight.fill_(QUERY_GAIN)
        # The head is the embedding itself: with rows of this size it needs small inputs to begin unsure.
        text.norm.weight.fill_(0.1)
    return model


def _waves(at: torch.Tensor, channels: int, slowest: float, fastest: float) -> torch.Tensor:
    """Sines and cosines of positions 0..1, (N, channels), in geometric steps of radians across the whole range."""
    steps = torch.exp(torch.linspace(math.log(slowest), math.log(fastest), channels // 2))
    return torch.cat([torch.sin(at[:, None] * steps), torch.cos(at[:, None] * steps)], dim=1)


def save_model(model: Any, tokenizer: Tokenizer, folder: Path, card: str) -> None:
    """Write a whole checkpoint: weights, configuration, tokenizer, template, preprocessing, model card."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    config = make_nano_config(tokenizer)
    _write(folder / "config.json", config)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    _write(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "size": {"shortest_edge": IMAGE_SPEC.min_pixels, "longest_edge": IMAGE_SPEC.max_pixels},
            "patch_size": IMAGE_SPEC.patch_size,
            "temporal_patch_size": IMAGE_SPEC.temporal_patch_size,
            "merge_size": IMAGE_SPEC.merge_size,
            "image_mean": list(IMAGE_SPEC.mean),
            "image_std": list(IMAGE_SPEC.std),
        },
    )
    _write(folder / "generation_config.json", {"eos_token_id": [tokenizer.token_to_id("<|im_end|>")]})
    (folder / "README.md").write_text(card, encoding="utf-8")


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
