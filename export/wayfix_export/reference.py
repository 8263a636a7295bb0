"""The checkpoint itself, run by transformers in float32: what an engine is compared with."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Weights are on disk; nothing may be looked up on a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

Grid = tuple[int, int]
"""Rows and columns of patches."""


@dataclass(frozen=True)
class ReferencePatches:
    """An image as the checkpoint's own processor cuts it: float32 (rows * columns, values)."""

    pixels: NDArray[np.float32]
    grid: Grid


class _Clock:
    """Notes when generate() gives out each token."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, _: Any) -> None:
        self.at.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is held back."""


class Reference:
    """Transformers' Qwen3-VL on CPU, one batch, no gradients."""

    def __init__(self, folder: Path, threads: int = 2) -> None:
        torch.set_num_threads(threads)
        self.model: Any = Qwen3VLForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        ends = self.model.generation_config.eos_token_id
        self.ends: list[int] = [ends] if isinstance(ends, int) else list(ends or ())
        """Tokens that end generate()."""
        self._processor = Qwen2VLImageProcessorPil.from_pretrained(folder)

    def patches(self, image: NDArray[np.uint8]) -> ReferencePatches:
        """Preprocess an RGB image (height, width, 3)."""
        done = self._processor(images=[image], return_tensors="np")
        _, rows, columns = (int(value) for value in done["image_grid_thw"][0])
        return ReferencePatches(np.asarray(done["pixel_values"], np.float32), (rows, columns))

    def features(self, patches: ReferencePatches) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Vision features (M, hidden), and those of the taps (taps, M, hidden)."""
        with torch.inference_mode():
            out = self.model.get_image_features(torch.from_numpy(patches.pixels), _grids([patches]))
        taps = torch.stack([tap[0] if isinstance(tap, (list, tuple)) else tap for tap in out.deepstack_features])
        return out.pooler_output[0].numpy(), taps.numpy()

    def logits(
        self, ids: Sequence[int], images: Sequence[ReferencePatches], rows: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Logits after the tokens at `rows`: (rows, vocabulary)."""
        with torch.inference_mode():
            kept = torch.from_numpy(rows)
            return self.model(**self._inputs(ids, images), use_cache=False, logits_to_keep=kept).logits[0].numpy()

    def greedy(self, ids: Sequence[int], images: Sequence[ReferencePatches], count: int) -> list[int]:
        """The next `count` tokens by generate()."""
        with torch.inference_mode():
            out = self.model.generate(
                **self._inputs(ids, images), max_new_tokens=count, min_new_tokens=count, do_sample=False
            )
        return out[0, len(ids) :].tolist()

    def token_seconds(self, ids: Sequence[int], images: Sequence[ReferencePatches], count: int) -> list[float]:
        """How long generate() takes for each of `count` tokens; the first includes reading the prompt."""
        clock = _Clock()
        with torch.inference_mode():
            self.model.generate(
                **self._inputs(ids, images),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                streamer=clock,
            )
        # The streamer is told of the prompt first.
        return [b - a for a, b in zip(clock.at, clock.at[1:], strict=False)]

    def _inputs(self, ids: Sequence[int], images: Sequence[ReferencePatches]) -> dict[str, Any]:
        tokens = torch.tensor([list(ids)])
        inputs: dict[str, Any] = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        inputs["mm_token_type_ids"] = (tokens == self.model.config.image_token_id).int()
        if images:
            inputs["pixel_values"] = torch.from_numpy(np.concatenate([image.pixels for image in images]))
            inputs["image_grid_thw"] = _grids(images)
        return inputs


def _grids(images: Sequence[ReferencePatches]) -> Any:
    return torch.tensor([(1, *image.grid) for image in images])
