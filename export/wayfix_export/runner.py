"""Runs a folder's graphs of either flavour on whole prompts, for calibration and parity. Plain and slow on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from wayfix.policy.engine.chat import TokenPrompt
from wayfix.policy.engine.images import Patches
from wayfix.policy.engine.positions import Rotary, token_positions, vision_positions, vision_rotary
from wayfix_export.checkpoint import Checkpoint

MASKED = -30000.0
"""In float16 too: what no token attends to."""


class GraphRunner:
    """The three graphs of a folder; every read begins from nothing."""

    def __init__(self, folder: Path, checkpoint: Checkpoint, threads: int = 2) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        load = {"sess_options": options, "providers": ["CPUExecutionProvider"]}
        self.vision, self.embedding, self.decoder = (
            ort.InferenceSession(str(folder / f"{part}.onnx"), **load) for part in ("vision", "embedding", "decoder")
        )
        self.shape = checkpoint.shape
        text = self.shape.text_config
        self._rotary = Rotary(text.head_dim, text.rope_theta, text.mrope_section)
        first = self.decoder.get_inputs()[0]
        self.kind: Any = np.float16 if first.type == "tensor(float16)" else np.float32

    def encode(self, patches: Patches) -> dict[str, NDArray[np.float32]]:
        """All outputs of the vision graph."""
        vision = self.shape.vision_config
        merge, grid = vision.spatial_merge_size, (patches.rows, patches.columns)
        where = vision_positions(*grid, int(vision.num_position_embeddings**0.5), merge)
        cos, sin = vision_rotary(*grid, merge, vision.head_dim, vision.rope_theta)
        feed: dict[str, NDArray[Any]] = {
            "pixels": patches.pixels,
            "table_indices": where.indices,
            "table_weights": where.weights,
            "cos": cos,
            "sin": sin,
        }  # fmt: skip
        return _named(self.vision, feed)

    def read(
        self, prompt: TokenPrompt, patches: Sequence[Patches], rows: NDArray[np.int64], chunk: int = 256
    ) -> dict[str, NDArray[Any]]:
        """Logits (rows, vocabulary) after the tokens at `rows`, which ascend.

        Where the graph observes, also the largest inputs of its layers.
        """
        ids, text = prompt.ids, self.shape.text_config
        encoded = [self.encode(image) for image in patches]
        grids = [(image.rows, image.columns) for image in patches]
        embeds = self.embedding.run(None, {"input_ids": ids[None]})[0]
        taps = len(self.shape.vision_config.deepstack_visual_indexes)
        deepstack = np.zeros((taps, 1, len(ids), text.hidden_size), np.float32)
        for image, made in zip(prompt.images, encoded, strict=True):
            place = slice(image.start, image.start + image.tokens)
            embeds[0, place], deepstack[:, :, place] = made["features"], made["deepstack"]
        merge = self.shape.vision_config.spatial_merge_size
        positions, _ = token_positions(ids, grids, self.shape.image_token_id, 0, merge)
        cos, sin = self._rotary.rows(positions)
        feed = {
            "inputs_embeds": embeds.astype(self.kind),
            "deepstack": deepstack.astype(self.kind),
            "cos": cos,
            "sin": sin,
        }
        return self._chunks(feed, rows, len(ids), chunk)

    def _chunks(
        self, feed: dict[str, NDArray[Any]], rows: NDArray[np.int64], count: int, chunk: int
    ) -> dict[str, NDArray[Any]]:
        fused = any(value.name == "kept" for value in self.decoder.get_inputs())
        past = self._empty(count if fused else 0)
        logits: list[NDArray[Any]] = []
        largest: dict[str, NDArray[Any]] = {}
        for start in range(0, count, chunk):
            end = min(start + chunk, count)
            now: dict[str, NDArray[Any]] = {
                "inputs_embeds": feed["inputs_embeds"][:, start:end],
                "deepstack": feed["deepstack"][:, :, start:end],
                "logit_positions": rows[(rows >= start) & (rows < end)] - start,
            }
            if fused:
                lengths = {"kept": np.array([end - 1], np.int32), "total": np.array(end, np.int32)}
                now |= {"cos": feed["cos"], "sin": feed["sin"], **lengths}
            else:
                bias = np.triu(np.full((end - start, end), MASKED, self.kind), start + 1)
                now |= {
                    "cos": feed["cos"][start:end],
                    "sin": feed["sin"][start:end],
                    "attention_bias": bias[None, None],
                }
            out = _named(self.decoder, now | past)
            logits.append(out["logits"][0])
            past = {f"past.{name[8:]}": value for name, value in out.items() if name.startswith("present.")}
            for name, value in out.items():
                if name.startswith("largest:"):
                    largest[name] = np.maximum(value, largest.get(name, 0))
        return {"logits": np.concatenate(logits), **largest}

    def _empty(self, capacity: int) -> dict[str, NDArray[Any]]:
        text = self.shape.text_config
        shape = (1, text.num_key_value_heads, capacity, text.head_dim)
        names = (f"past.{layer}.{part}" for layer in range(text.num_hidden_layers) for part in ("key", "value"))
        return {name: np.zeros(shape, self.kind) for name in names}


def _named(session: Any, feed: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, feed), strict=True))
