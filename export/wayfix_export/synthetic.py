"""Checkpoints with random weights in the layout of Qwen3-VL's own, to try export and engine without a download."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from wayfix.agent.protocol import SYSTEM_TEXT, format_answer, format_call, format_not_found
from wayfix.tools.arguments import TOOLS, tool_schema

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
PLAIN_TOKENS = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>",
    "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
"""Tokens behind the vocabulary, in Qwen3's order: these are plain text to a decoder, those above are not."""

_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_SMALL_TEXT = {
    "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 8192,
}  # fmt: skip
_SMALL_VISION = {
    "hidden_size": 192, "intermediate_size": 768, "depth": 6, "num_heads": 6, "out_hidden_size": 256,
    "deepstack_visual_indexes": [1, 3, 5],
}  # fmt: skip
_QWEN_4B_TEXT = {
    "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 262144,
}  # fmt: skip
_QWEN_4B_VISION = {
    "hidden_size": 1024, "intermediate_size": 4096, "depth": 24, "num_heads": 16, "out_hidden_size": 2560,
    "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip

Sizes = dict[str, Any]
SIZES: dict[str, tuple[Sizes, Sizes]] = {
    "tiny": (
        {**_SMALL_TEXT, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "head_dim": 32,
         "num_attention_heads": 4, "vocab_size": 2048},
        {**_SMALL_VISION, "hidden_size": 64, "intermediate_size": 128, "depth": 4, "num_heads": 2,
         "out_hidden_size": 64, "deepstack_visual_indexes": [0, 2]},
    ),
    "14m": (_SMALL_TEXT, _SMALL_VISION),
    "4b-2layers": (
        {**_QWEN_4B_TEXT, "num_hidden_layers": 2},
        {**_QWEN_4B_VISION, "depth": 4, "deepstack_visual_indexes": [0, 1, 2]},
    ),
    "4b": (_QWEN_4B_TEXT, _QWEN_4B_VISION),
}  # fmt: skip
"""Text and vision configs by name; `4b` has the dimensions of Qwen3-VL-4B-Instruct."""

TEMPLATE = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- macro show(content) %}
    {%- if content is string %}
        {{- content }}
    {%- else %}
        {%- for part in content %}
            {%- if part.type == 'image' %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- else %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + show(message.content) + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif message.role != 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + show(message.content) + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""A chat template of the same form as Qwen3-VL's."""

_SHARD_BYTES = 2_000_000_000


def write_checkpoint(folder: Path, size: str, seed: int = 0, dtype: type[np.generic] = np.float32) -> None:
    """Write a whole checkpoint: config, tokenizer, template, preprocessing and random weights, in shards of 2 GB."""
    text, vision = SIZES[size]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(text["vocab_size"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = make_config(text, vision, tokenizer, np.dtype(dtype).name)
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    _write_json(
        folder / "preprocessor_config.json",
        {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "size": {"shortest_edge": 65536, "longest_edge": 16777216},
            "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        },
    )  # fmt: skip
    _write_json(folder / "generation_config.json", {"eos_token_id": [tokenizer.token_to_id("<|im_end|>")]})
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\nRandom weights.\n", encoding="utf-8")
    _write_weights(folder, config, np.random.default_rng(seed), dtype)


def make_tokenizer(vocabulary: int) -> Tokenizer:
    """A byte-level BPE tokenizer in Qwen3's layout, its added tokens right behind a vocabulary near the logits' width.

    It is trained on the protocol's own texts; a large vocabulary is filled up with tokens that no text is made of.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # As in Qwen3-VL, where 151,643 tokens and 26 added ones stand before 151,936 logits.
    base = 151_643 if vocabulary == 151_936 else vocabulary - 64
    trainer = trainers.BpeTrainer(
        vocab_size=base, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    state = json.loads(tokenizer.to_str())
    words = state["model"]["vocab"]
    # Digits are words of their own: no text has been, or can be, cut into one of these.
    words.update({f"Ġ#{number}": number for number in range(len(words), base)})
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN_TOKENS])
    return tokenizer


def make_config(text: Sizes, vision: Sizes, tokenizer: Tokenizer, dtype: str) -> dict[str, Any]:
    """A config.json as the published checkpoints have it."""
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    ids = {f"{name}_token_id": tokenizer.token_to_id(f"<|{token}|>") for name, token in (
        ("image", "image_pad"), ("video", "video_pad"), ("vision_start", "vision_start"), ("vision_end", "vision_end"),
    )}  # fmt: skip
    half = text["head_dim"] // 2
    # Qwen3-VL's sections are 24, 20, 20 of 64.
    section = [half - 2 * (half * 5 // 16), half * 5 // 16, half * 5 // 16]
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "tie_word_embeddings": True,
        **ids,
        "text_config": {
            "model_type": "qwen3_vl_text", **text, "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False,
            "attention_dropout": 0.0, "rope_theta": 5_000_000, "tie_word_embeddings": True, "use_cache": True,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": section, "rope_type": "default"},
            "bos_token_id": pad, "eos_token_id": end, "pad_token_id": pad, "dtype": dtype,
        },
        "vision_config": {
            "model_type": "qwen3_vl", **vision, "hidden_act": "gelu_pytorch_tanh", "in_channels": 3, "patch_size": 16,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304,
        },
    }  # fmt: skip


def _texts() -> Iterator[str]:
    yield SYSTEM_TEXT
    yield from (json.dumps(tool_schema(name)) for name in TOOLS)
    rng = np.random.default_rng(0)
    colours, things = ("red", "white", "blue", "orange", "grey"), ("car", "van", "building", "truck", "tree")
    places = ("police station", "school", "church", "pharmacy", "bridge", "town hall")
    sides = ("left of", "right of", "next to", "north of", "in front of", "between", "nearest to")
    for _ in range(2000):
        colour, thing, place, side = (str(rng.choice(words)) for words in (colours, things, places, sides))
        box = tuple(int(value) for value in rng.integers(0, 1001, 4))
        yield f"Find: the {colour} {thing} {side} the {place}. Turns left: {rng.integers(1, 8)}."
        yield format_call("zoom_in", {"source_view_id": "v0", "crop_box": box}, f"The {thing} lies {side} the {place}.")
        yield format_call("landmark_query", {"landmark_name": f"{place}", "source_view_id": "v0"})
        yield format_call("oblique_render", {"source_view_id": "v1", "candidate_box": box, "direction": "north"})
        yield format_answer(f"v{rng.integers(9)}", box)  # type: ignore[arg-type]
    yield format_not_found()


def _weight_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all weights, in the order a checkpoint would be read."""
    text, vision = config["text_config"], config["vision_config"]
    width, wide, inner = vision["hidden_size"], 4 * vision["hidden_size"], vision["intermediate_size"]
    patch = (width, 3, 2, 16, 16)
    yield from ((f"model.visual.patch_embed.proj.{n}", s) for n, s in (("weight", patch), ("bias", (width,))))
    yield "model.visual.pos_embed.weight", (vision["num_position_embeddings"], width)
    layers: list[tuple[str, int, int]] = []
    for block in range(vision["depth"]):
        name = f"model.visual.blocks.{block}"
        layers += [(f"{name}.attn.qkv", 3 * width, width), (f"{name}.attn.proj", width, width)]
        layers += [(f"{name}.mlp.linear_fc1", inner, width), (f"{name}.mlp.linear_fc2", width, inner)]
        layers += [(f"{name}.norm1", width, 0), (f"{name}.norm2", width, 0)]
    mergers = [
        ("merger", width),
        *((f"deepstack_merger_list.{n}", wide) for n in range(len(vision["deepstack_visual_indexes"]))),
    ]
    for merger, normed in mergers:
        name = f"model.visual.{merger}"
        layers += [(f"{name}.norm", normed, 0), (f"{name}.linear_fc1", wide, wide)]
        layers += [(f"{name}.linear_fc2", vision["out_hidden_size"], wide)]
    for name, out, into in layers:
        yield f"{name}.weight", (out, into) if into else (out,)
        yield f"{name}.bias", (out,)
    hidden, dim = text["hidden_size"], text["head_dim"]
    yield "model.language_model.embed_tokens.weight", (text["vocab_size"], hidden)
    for layer in range(text["num_hidden_layers"]):
        name = f"model.language_model.layers.{layer}"
        q, kv = text["num_attention_heads"] * dim, text["num_key_value_heads"] * dim
        for part, out in (("q", q), ("k", kv), ("v", kv)):
            yield f"{name}.self_attn.{part}_proj.weight", (out, hidden)
        yield f"{name}.self_attn.o_proj.weight", (hidden, q)
        yield from ((f"{name}.self_attn.{part}_norm.weight", (dim,)) for part in "qk")
        yield from ((f"{name}.mlp.{part}_proj.weight", (text["intermediate_size"], hidden)) for part in ("gate", "up"))
        yield f"{name}.mlp.down_proj.weight", (hidden, text["intermediate_size"])
        yield from ((f"{name}.{part}.weight", (hidden,)) for part in ("input_layernorm", "post_attention_layernorm"))
    yield "model.language_model.norm.weight", (hidden,)


def _write_weights(folder: Path, config: dict[str, Any], rng: np.random.Generator, dtype: type[np.generic]) -> None:
    shapes = list(_weight_shapes(config))
    total = sum(int(np.prod(shape)) for _, shape in shapes) * np.dtype(dtype).itemsize
    count = -(-total // _SHARD_BYTES)
    where: dict[str, str] = {}
    shard: dict[str, NDArray[Any]] = {}
    for name, shape in shapes:
        shard[name] = _random(rng, name, shape).astype(dtype)
        if sum(array.nbytes for array in shard.values()) > _SHARD_BYTES and count > 1:
            shards_done = len(set(where.values()))
            _save_shard(folder, shard, f"model-{shards_done + 1:05d}.safetensors", where)
            shard = {}
    if where:
        _save_shard(folder, shard, f"model-{len(set(where.values())) + 1:05d}.safetensors", where)
        _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})
    else:
        _save_shard(folder, shard, "model.safetensors", where)


def _save_shard(folder: Path, shard: dict[str, NDArray[Any]], name: str, where: dict[str, str]) -> None:
    save_file(shard, folder / name, metadata={"format": "pt"})
    where.update(dict.fromkeys(shard, name))


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Weights that keep the size of what flows through, so that errors show: gains of one."""
    if name.endswith("bias"):
        return rng.standard_normal(shape, np.float32) * np.float32(0.02)
    if len(shape) == 1:
        return 1 + rng.standard_normal(shape, np.float32) * np.float32(0.1)
    scale = {"embed_tokens": 0.06, "pos_embed": 0.1}.get(name.split(".")[-2], int(np.prod(shape[1:])) ** -0.5)
    return rng.standard_normal(shape, np.float32) * np.float32(scale)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
