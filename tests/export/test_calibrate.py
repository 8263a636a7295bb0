"""Calibration sees what flows into every linear layer while searches are read."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from wayfix.policy.engine.chat import Chat
from wayfix.policy.engine.images import ImageSpec, make_patches
from wayfix_export.calibrate import observe_ranges
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.decoder import write_decoder, write_embedding
from wayfix_export.episodes import Episode, conversation
from wayfix_export.runner import GraphRunner
from wayfix_export.vision import write_vision

LINEAR = {
    "patch_embed",
    *(f"blocks.{n}.{part}" for n in range(4) for part in ("attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2")),
    *(f"{name}.linear_fc1" for name in ("merger", "deepstack_merger_list.0", "deepstack_merger_list.1")),
    *(f"{name}.linear_fc2" for name in ("merger", "deepstack_merger_list.0", "deepstack_merger_list.1")),
    *(f"layers.{n}.{part}" for n in range(4) for part in ("qkv", "o", "gate_up", "down")),
    "lm_head",
}  # fmt: skip
"""Every product of the tiny model with a weight."""


def quiet(_: str) -> None:
    """Say nothing."""


def test_every_linear_layer_has_a_range(ranges: dict[str, float]) -> None:
    assert set(ranges) == LINEAR
    assert all(math.isfinite(largest) and largest > 0 for largest in ranges.values())


def test_ranges_are_what_flows_into_the_layers(
    ranges: dict[str, float], episodes: list[Episode], chat: Chat, spec: ImageSpec
) -> None:
    """The first layer's input is known: the pixels of all images."""
    images = [image for episode in episodes for image in chat.tokens(conversation(episode)).images]
    assert ranges["patch_embed"] == max(np.abs(make_patches(image.image, spec).pixels).max() for image in images)


def test_what_flows_into_the_head_is_seen_at_many_tokens(
    checkpoint: Checkpoint,
    chat: Chat,
    spec: ImageSpec,
    episodes: list[Episode],
    ranges: dict[str, float],
    tmp_path: Path,
) -> None:
    """Within a tenth of the largest of all tokens."""
    write_vision(checkpoint, tmp_path / "vision.onnx", "trt", "fp32")
    write_embedding(checkpoint, tmp_path / "embedding.onnx", "fp32")
    write_decoder(checkpoint, tmp_path / "decoder.onnx", "trt", "fp32", observe=True)
    runner, largest = GraphRunner(tmp_path, checkpoint, threads=1), []
    for episode in episodes:
        tokens = chat.tokens(conversation(episode))
        patches = [make_patches(image.image, spec) for image in tokens.images]
        largest.append(runner.read(tokens, patches, np.arange(len(tokens.ids)))["largest:lm_head"])
    assert 0.9 * max(largest) <= ranges["lm_head"] <= 1.001 * max(largest)


def test_they_are_the_widest_of_all_episodes(
    checkpoint: Checkpoint, chat: Chat, spec: ImageSpec, episodes: list[Episode], ranges: dict[str, float]
) -> None:
    alone = [observe_ranges(checkpoint, chat, spec, [episode], quiet) for episode in episodes]
    assert alone[0] != alone[1]
    assert ranges == {name: max(seen[name] for seen in alone) for name in ranges}


def test_they_are_those_of_the_checkpoint(
    other_checkpoint: Checkpoint, chat: Chat, spec: ImageSpec, episodes: list[Episode], ranges: dict[str, float]
) -> None:
    seen = observe_ranges(other_checkpoint, chat, spec, episodes, quiet)
    assert set(seen) == set(ranges)
    assert sum(abs(seen[name] - ranges[name]) > 0.01 * ranges[name] for name in ranges) > len(ranges) / 2


def test_each_episode_is_announced(
    checkpoint: Checkpoint, chat: Chat, spec: ImageSpec, episodes: list[Episode]
) -> None:
    said: list[str] = []
    observe_ranges(checkpoint, chat, spec, episodes, said.append)
    assert said == ["calibrating on episode 1 of 2", "calibrating on episode 2 of 2"]


@pytest.mark.parametrize("write", [write_decoder, write_vision])
def test_static_int8_has_the_step_of_its_range(
    write: Callable[..., None], checkpoint: Checkpoint, ranges: dict[str, float], tmp_path: Path
) -> None:
    write(checkpoint, tmp_path / "a.onnx", "trt", "int8", ranges=ranges)
    graph = onnx.load(tmp_path / "a.onnx").graph
    steps: dict[str, Any] = {
        tensor.name.removesuffix(".input_scale"): onnx.numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.name.endswith(".input_scale")
    }
    assert steps and set(steps) <= LINEAR
    for name, step in steps.items():
        assert step.dtype == np.float16 and step == np.float16(ranges[name] / 127)


def test_a_layer_that_nothing_flows_into_still_has_a_step(
    checkpoint: Checkpoint, ranges: dict[str, float], tmp_path: Path
) -> None:
    """A step of 0 would be divided by."""
    write_decoder(checkpoint, tmp_path / "a.onnx", "trt", "int8", ranges={**ranges, "layers.1.o": 0.0})
    tensors = {tensor.name: tensor for tensor in onnx.load(tmp_path / "a.onnx").graph.initializer}
    assert onnx.numpy_helper.to_array(tensors["layers.1.o.input_scale"]) > 0
