"""What flows into every linear layer while real episodes are read: the ranges that static INT8 needs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from wayfix.policy.engine.chat import Chat
from wayfix.policy.engine.images import ImageSpec, make_patches
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.decoder import write_decoder, write_embedding
from wayfix_export.episodes import Episode, conversation
from wayfix_export.runner import GraphRunner
from wayfix_export.vision import write_vision

_EVERY = 8
"""Of how many tokens logits are read: what flows into their layer is seen there only, and all of them may be too many
for memory."""


def observe_ranges(
    checkpoint: Checkpoint, chat: Chat, spec: ImageSpec, episodes: Sequence[Episode], progress: Callable[[str], None]
) -> dict[str, float]:
    """Largest magnitude at the input of each linear layer, by its name, over whole episodes read in float32."""
    ranges: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="wayfix-calibration-") as folder:
        path = Path(folder)
        write_vision(checkpoint, path / "vision.onnx", "trt", "fp32", observe=True)
        write_embedding(checkpoint, path / "embedding.onnx", "fp32")
        write_decoder(checkpoint, path / "decoder.onnx", "trt", "fp32", observe=True)
        runner = GraphRunner(path, checkpoint)
        for number, episode in enumerate(episodes, 1):
            progress(f"calibrating on episode {number} of {len(episodes)}")
            tokens = chat.tokens(conversation(episode))
            patches = [make_patches(image.image, spec) for image in tokens.images]
            seen = [runner.encode(image) for image in patches]
            seen.append(runner.read(tokens, patches, np.arange(0, len(tokens.ids), _EVERY)))
            for out in seen:
                for name, value in out.items():
                    if name.startswith("largest:"):
                        key = name.removeprefix("largest:")
                        ranges[key] = max(ranges.get(key, 0.0), float(value))
    return ranges
