"""The nano model's shape: its images, its chat template, its configuration."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from wayfix.policy.engine.chat import Chat
from wayfix.policy.engine.images import ImageSpec
from wayfix.views.view import ImageSizes
from wayfix_export.synthetic import TEMPLATE

SIZES = ImageSizes(overview=768, zoom=320, oblique=160)
"""The whole of a 300 m scene at 0.4 m a pixel, a car 11 pixels long; a zoom of 44 m at 0.14 m."""

PATCH, MERGE = 16, 2
IMAGE_SPEC = ImageSpec(
    patch_size=PATCH,
    temporal_patch_size=2,
    merge_size=MERGE,
    min_pixels=(PATCH * MERGE) ** 2,
    max_pixels=SIZES.overview**2,
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
)

TEXT = {
    "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 6,
    "num_key_value_heads": 3, "head_dim": 32, "max_position_embeddings": 8192,
}  # fmt: skip
VISION = {
    "hidden_size": 128, "intermediate_size": 384, "depth": 4, "num_heads": 4, "out_hidden_size": TEXT["hidden_size"],
    "deepstack_visual_indexes": [1],
}  # fmt: skip
POSITIONS = (SIZES.overview // PATCH // MERGE) ** 2
"""A position embedding a token of the overview; finer ones lie between them."""


def make_chat(tokenizer: Tokenizer) -> Chat:
    """Prompts as the nano model reads them."""
    return Chat(TEMPLATE, tokenizer, tokenizer.get_vocab()["<|image_pad|>"], IMAGE_SPEC)


def make_nano_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """A config.json of Qwen3-VL's stock architecture."""
    ids = {
        f"{name}_token_id": tokenizer.token_to_id(f"<|{token}|>")
        for name, token in (
            ("image", "image_pad"), ("video", "video_pad"), ("vision_start", "vision_start"),
            ("vision_end", "vision_end"),
        )
    }  # fmt: skip
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    half = TEXT["head_dim"] // 2
    section = [half - 2 * (half * 5 // 16), half * 5 // 16, half * 5 // 16]
    size = -(-tokenizer.get_vocab_size() // 16) * 16
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "tie_word_embeddings": True,
        **ids,
        "text_config": {
            "model_type": "qwen3_vl_text", **TEXT, "vocab_size": size, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "attention_bias": False, "attention_dropout": 0.0, "rope_theta": 10_000, "tie_word_embeddings": True,
            "use_cache": True,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": section, "rope_type": "default"},
            "bos_token_id": pad, "eos_token_id": end, "pad_token_id": pad, "dtype": "float32",
        },
        "vision_config": {
            "model_type": "qwen3_vl", **VISION, "hidden_act": "gelu_pytorch_tanh", "in_channels": 3,
            "patch_size": PATCH, "spatial_merge_size": MERGE, "temporal_patch_size": 2,
            "num_position_embeddings": POSITIONS,
        },
        "wayfix_image_sizes": {"overview": SIZES.overview, "zoom": SIZES.zoom, "oblique": SIZES.oblique},
    }  # fmt: skip
