"""A Hugging Face Qwen3-VL checkpoint on disk: its shape, and its weights one at a time."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy, and with it safetensors, the type bfloat16)
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError, safe_open

from wayfix.errors import UnreadableCheckpoint, UnsupportedModel

_MODEL_TYPE = "qwen3_vl"
_FLOATS = ("F64", "F32", "F16", "BF16")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


class _Shape(BaseModel):
    # A checkpoint's config holds much that only training needs.
    model_config = ConfigDict(extra="ignore", frozen=True)


class TextShape(_Shape):
    """The language model's dimensions, named as in config.json."""

    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    rms_norm_eps: float = 1e-6
    rope_theta: float = Field(gt=0)
    mrope_section: tuple[int, int, int]
    max_position_embeddings: int = Field(gt=0)
    attention_bias: bool = False
    hidden_act: str = "silu"

    @model_validator(mode="before")
    @classmethod
    def _flatten_rope(cls, config: Any) -> Any:
        """Transformers 5 writes `rope_parameters`, the published checkpoints `rope_scaling` beside `rope_theta`."""
        if not isinstance(config, dict):
            return config
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            raise ValueError("rotary positions that are no JSON object")
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "mrope") or not rope.get("mrope_interleaved", True):
            raise ValueError(f"rotary positions of type {kind!r} (interleaved: {rope.get('mrope_interleaved')})")
        found = {name: rope[name] for name in ("rope_theta", "mrope_section") if name in rope}
        return {**config, **found}

    @model_validator(mode="after")
    def _check(self) -> TextShape:
        if self.attention_bias or self.hidden_act != "silu":
            raise ValueError("attention biases or an activation other than silu")
        if sum(self.mrope_section) != self.head_dim // 2 or self.num_attention_heads % self.num_key_value_heads:
            raise ValueError("heads and rotary sections that do not fit one another")
        return self


class VisionShape(_Shape):
    """The vision encoder's dimensions, named as in config.json."""

    depth: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    in_channels: int = 3
    patch_size: int = Field(gt=0)
    spatial_merge_size: int = Field(gt=0)
    temporal_patch_size: int = Field(gt=0)
    out_hidden_size: int = Field(gt=0)
    num_position_embeddings: int = Field(gt=0)
    deepstack_visual_indexes: tuple[int, ...]
    hidden_act: str = "gelu_pytorch_tanh"
    rope_theta: float = 10000.0

    @model_validator(mode="after")
    def _check(self) -> VisionShape:
        if self.hidden_act != "gelu_pytorch_tanh" or math.isqrt(self.num_position_embeddings) ** 2 != (
            self.num_position_embeddings
        ):
            raise ValueError("a vision activation other than gelu_pytorch_tanh, or a position table that is no square")
        taps = self.deepstack_visual_indexes
        if not taps or len(set(taps)) < len(taps) or not set(taps) <= set(range(self.depth)):
            raise ValueError(f"DeepStack features of blocks {taps}, of {self.depth}")
        return self

    @property
    def head_dim(self) -> int:
        """Channels of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def patch_values(self) -> int:
        """Values of one patch as the preprocessing lays them out."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2


class ModelShape(_Shape):
    """The whole model's dimensions and the ids of its special tokens."""

    model_type: str
    text_config: TextShape
    vision_config: VisionShape
    image_token_id: int
    vision_start_token_id: int
    vision_end_token_id: int
    tie_word_embeddings: bool = False

    @model_validator(mode="before")
    @classmethod
    def _tied_anywhere(cls, config: Any) -> Any:
        if isinstance(config, dict) and "tie_word_embeddings" not in config:
            text = config.get("text_config")
            tied = isinstance(text, dict) and bool(text.get("tie_word_embeddings", False))
            return {**config, "tie_word_embeddings": tied}
        return config


class Checkpoint:
    """A checkpoint folder. Weights are read from disk one at a time, never all at once."""

    def __init__(self, folder: Path) -> None:
        """Raises UnreadableCheckpoint or UnsupportedModel."""
        self.folder = folder
        if not folder.is_dir():
            raise UnreadableCheckpoint(f"there is no folder {folder}; give a downloaded Hugging Face checkpoint")
        self.config = self.json("config.json")
        if self.config.get("model_type") != _MODEL_TYPE:
            raise UnsupportedModel(
                f"{folder} is a model of type {self.config.get('model_type')!r}; only {_MODEL_TYPE!r} can be exported"
            )
        if self.config.get("quantization_config"):
            raise UnsupportedModel(
                f"the weights of {folder} are quantized already; give the checkpoint in bfloat16 that they were made of"
            )
        try:
            self.shape = ModelShape.model_validate(self.config)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:4])
            raise UnsupportedModel(f"the config of {folder} has what the export does not know: {problems}") from error
        self._files = self._index()
        self._open: dict[str, Any] = {}

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder. Raises UnreadableCheckpoint."""
        try:
            content = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UnreadableCheckpoint(f"{self.folder / name} cannot be read: {error}") from error
        if not isinstance(content, dict):
            raise UnreadableCheckpoint(f"{self.folder / name} holds no JSON object")
        return content

    def weight(self, name: str) -> NDArray[np.float32]:
        """A weight as float32.

        Raises UnreadableCheckpoint where it is missing or has values that are not finite, UnsupportedModel where its
        type needs scales to be read.
        """
        handle = self._handle(name)
        kind = handle.get_slice(name).get_dtype()
        if kind not in _FLOATS:
            raise UnsupportedModel(f"the weight {name} of {self.folder} is of type {kind}, not one of {_FLOATS}")
        return self._checked(name, handle.get_tensor(name))

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds this weight."""
        return name in self._files

    @property
    def output_name(self) -> str:
        """The weight that turns hidden states into logits: the embedding itself where they are tied."""
        tied = self.shape.tie_word_embeddings or not self.has("lm_head.weight")
        return "model.language_model.embed_tokens.weight" if tied else "lm_head.weight"

    def source_hash(self) -> str:
        """SHA-256 over config, tokenizer and weights, in the order of their names."""
        digest = hashlib.sha256()
        for name in sorted({"config.json", *TOKENIZER_FILES, *self._files.values()}):
            path = self.folder / name
            if path.is_file():
                digest.update(f"{name}\n{path.stat().st_size}\n".encode())
                with path.open("rb") as file:
                    while block := file.read(1 << 22):
                        digest.update(block)
        return digest.hexdigest()

    def weight_bytes(self) -> int:
        """Size of the weight files."""
        return sum((self.folder / name).stat().st_size for name in set(self._files.values()))

    def weight_count(self) -> int:
        """How many numbers the weights are."""
        return sum(math.prod(self._handle(name).get_slice(name).get_shape()) for name in sorted(self._files))

    def _index(self) -> dict[str, str]:
        index = self.folder / "model.safetensors.index.json"
        if index.is_file():
            files = self.json(index.name).get("weight_map")
            if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
                raise UnreadableCheckpoint(f"{index} has no weight_map")
        else:
            with self._opened("model.safetensors") as weights:
                files = dict.fromkeys(weights.keys(), "model.safetensors")
        for name in set(files.values()):
            if not (self.folder / name).is_file():
                raise UnreadableCheckpoint(f"{self.folder} lacks its weight file {name}; was the download complete?")
        return files

    def _opened(self, name: str) -> Any:
        try:
            return safe_open(self.folder / name, "np")
        except (OSError, SafetensorError) as error:
            raise UnreadableCheckpoint(f"{self.folder / name} is no whole safetensors file: {error}") from error

    def _handle(self, name: str) -> Any:
        if name not in self._files:
            raise UnreadableCheckpoint(f"{self.folder} has no weight {name}; is it a whole Qwen3-VL checkpoint?")
        file = self._files[name]
        if file not in self._open:
            # One open file at a time: pages of a finished shard are given back.
            self._open = {file: self._opened(file)}
        try:
            self._open[file].get_slice(name)
        except SafetensorError as error:
            raise UnreadableCheckpoint(f"{self.folder / file} lacks the weight {name}: {error}") from error
        return self._open[file]

    def _checked(self, name: str, values: NDArray[Any]) -> NDArray[np.float32]:
        result = np.ascontiguousarray(values, dtype=np.float32)
        if not np.isfinite(result).all():
            raise UnreadableCheckpoint(f"the weight {name} of {self.folder} holds values that are not finite")
        return result
