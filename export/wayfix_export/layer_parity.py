"""Parity of a large model, one layer in memory at a time.

Each layer of checkpoint and engine reads the same input, what the checkpoint's layers before it made of a recorded
prompt; so an error shows at the layer that makes it. It runs in a process of its own: what torch and onnxruntime took
is given back when it ends.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from wayfix.agent.messages import Message, Prompt
from wayfix.errors import ExportError
from wayfix.policy.engine.chat import Chat
from wayfix.policy.engine.images import ImageSpec, make_patches
from wayfix.policy.engine.manifest import Precisions
from wayfix.policy.engine.positions import Rotary, token_positions, vision_positions, vision_rotary
from wayfix.views.view import View
from wayfix_export import checks
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.checks import Check, relative_l2
from wayfix_export.episodes import Episode
from wayfix_export.layers import Flavour

_SIDE = 256
"""Of the picture that is read: a corner of a recorded one."""

_LOGIT_ROWS = 32


def layer_checks(
    checkpoint: Checkpoint,
    work: Path,
    chat: Chat,
    spec: ImageSpec,
    precision: Precisions,
    flavour: Flavour,
    episode: Episode,
    progress: Callable[[str], None],
) -> list[Check]:
    """Compare an unfinished engine folder with its checkpoint in a child process. Raises ExportError if that fails."""
    prompt = chat.tokens(_short_prompt(episode))
    image = prompt.images[0]
    patches = make_patches(image.image, spec)
    with tempfile.TemporaryDirectory(prefix="wayfix-layers-") as folder:
        given, found = Path(folder) / "given.npz", Path(folder) / "found.json"
        np.savez(given, ids=prompt.ids, start=image.start, pixels=patches.pixels, grid=(patches.rows, patches.columns))
        command = [sys.executable, "-m", "wayfix_export.layer_parity", str(checkpoint.folder), str(work), str(given)]
        command += [str(found), flavour, precision.vision, precision.decoder]
        # A file takes any number of warnings, where a pipe that nobody reads yet would fill up and stop the child.
        with (Path(folder) / "said.txt").open("w+", encoding="utf-8") as words:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=words, text=True) as child:
                assert child.stdout is not None
                for line in child.stdout:
                    progress(line.strip())
            words.seek(0)
            said = words.read()
        if child.returncode != 0 or not found.is_file():
            raise ExportError(f"comparing layer by layer failed: {said.strip()[-500:] or f'status {child.returncode}'}")
        return [Check(**one) for one in json.loads(found.read_text(encoding="utf-8"))]


def _short_prompt(episode: Episode) -> Prompt:
    """The beginning of an episode with a corner of its image: what every layer must hold in memory stays small."""
    first = episode[0].prompt
    view = next(view for message in first.messages for view in message.views)
    corner = View(view.id, np.ascontiguousarray(view.image[:_SIDE, :_SIDE]), view.region, view.transform)
    system = Message("system", (first.messages[0].text,))
    return Prompt((), (system, Message("user", (corner, f"Find: {first.query}"))), first.query, must_answer=False)


class _Layers:
    """The child's work."""

    def __init__(self, checkpoint: Checkpoint, folder: Path, given: Any, flavour: Flavour) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        from transformers import AutoConfig

        self.torch, self.checkpoint, self.folder, self.flavour = torch, checkpoint, folder, flavour
        torch.set_grad_enabled(False)
        self.config = AutoConfig.from_pretrained(checkpoint.folder, attn_implementation="sdpa")
        self.config.text_config._attn_implementation = self.config.vision_config._attn_implementation = "sdpa"
        self.given = given
        self.shape = checkpoint.shape
        self.decoder = onnx.load(folder / "decoder.onnx", load_external_data=False)
        self.options = ort.SessionOptions()
        self.options.log_severity_level = 3

    def vision(self) -> tuple[NDArray[np.float32], NDArray[np.float32], float]:
        """The checkpoint's features, those of its taps, and the engine's worst relative L2."""
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

        torch, given, vision = self.torch, self.given, self.shape.vision_config
        model = Qwen3VLVisionModel._from_config(self.config.vision_config).eval().float()
        self._fill(model, "model.visual.")
        rows, columns = (int(value) for value in given["grid"])
        out = model(torch.from_numpy(given["pixels"]), grid_thw=torch.tensor([(1, rows, columns)]))
        features = out.pooler_output.numpy()
        taps = np.stack([tap.numpy() for tap in out.deepstack_features])
        del model, out
        gc.collect()
        merge = vision.spatial_merge_size
        where = vision_positions(rows, columns, int(vision.num_position_embeddings**0.5), merge)
        cos, sin = vision_rotary(rows, columns, merge, vision.head_dim, vision.rope_theta)
        names = ("pixels", "table_indices", "table_weights", "cos", "sin")
        feed = dict(zip(names, (given["pixels"], where.indices, where.weights, cos, sin), strict=True))
        got = self._session(self.folder / "vision.onnx").run(["features", "deepstack"], feed)
        return features, taps, max(relative_l2(got[0], features), relative_l2(got[1][:, 0], taps))

    def embeddings(self) -> tuple[NDArray[np.float32], float]:
        """The checkpoint's token embeddings (tokens, hidden), and the engine's relative L2."""
        ids = self.given["ids"]
        expected = self.checkpoint.weight("model.language_model.embed_tokens.weight")[ids]
        got = self._session(self.folder / "embedding.onnx").run(None, {"input_ids": ids[None]})[0][0]
        return expected, relative_l2(got, expected)

    def layers(
        self, embeds: NDArray[np.float32], features: NDArray[np.float32], taps: NDArray[np.float32]
    ) -> tuple[list[float], NDArray[np.float32]]:
        """The relative L2 of each layer, and what leaves the checkpoint's last one."""
        from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextDecoderLayer, Qwen3VLTextRotaryEmbedding

        torch, text, ids = self.torch, self.shape.text_config, self.given["ids"]
        place = slice(int(self.given["start"]), int(self.given["start"]) + len(features))
        x = embeds.copy()
        x[place] = features
        deepstack = np.zeros((len(taps), 1, *x.shape), np.float32)
        deepstack[:, 0, place] = taps
        grid = tuple(int(value) for value in self.given["grid"])
        merge = self.shape.vision_config.spatial_merge_size
        positions, _ = token_positions(ids, [grid], self.shape.image_token_id, 0, merge)  # type: ignore[list-item]
        turned = Qwen3VLTextRotaryEmbedding(self.config.text_config)(
            torch.zeros(1), torch.from_numpy(positions)[:, None]
        )
        mask = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
        errors = []
        for number in range(text.num_hidden_layers):
            layer = Qwen3VLTextDecoderLayer(self.config.text_config, number).eval().float()
            self._fill(layer, f"model.language_model.layers.{number}.")
            wanted = layer(torch.from_numpy(x)[None], position_embeddings=turned, attention_mask=mask)
            expected = (wanted[0] if isinstance(wanted, tuple) else wanted).numpy().reshape(x.shape)
            if number < len(taps):
                expected = expected + deepstack[number, 0]
            del layer
            errors.append(relative_l2(self._engine_layer(number, x, deepstack, positions), expected))
            x = expected
            print(f"layer {number + 1} of {text.num_hidden_layers}: relative L2 {errors[-1]:.2g}", flush=True)
        return errors, x

    def logits(self, x: NDArray[np.float32]) -> tuple[float, float]:
        """Relative L2 of the last rows' logits, and the share of equal likeliest tokens."""
        text = self.shape.text_config
        x = x[-_LOGIT_ROWS:]
        norm = self.checkpoint.weight("model.language_model.norm.weight")
        scaled = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + text.rms_norm_eps) * norm
        expected = scaled @ self.checkpoint.weight(self.checkpoint.output_name).T
        entry = f"hidden.{text.num_hidden_layers - 1}"
        session = self._part([entry, "logit_positions"], ["logits"])
        kind = np.float16 if "float16" in session.get_inputs()[0].type else np.float32
        got = session.run(None, {entry: x[None].astype(kind), "logit_positions": np.arange(len(x))})[0][0]
        return relative_l2(got, expected), float((got.argmax(axis=1) == expected.argmax(axis=1)).mean())

    def _engine_layer(
        self, number: int, x: NDArray[np.float32], deepstack: NDArray[np.float32], positions: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        text, count = self.shape.text_config, len(x)
        entry = f"hidden.{number - 1}" if number else "inputs_embeds"
        cos, sin = Rotary(text.head_dim, text.rope_theta, text.mrope_section).rows(positions)
        inputs = [entry, f"past.{number}.key", f"past.{number}.value", "cos", "sin"]
        inputs += ["kept", "total"] if self.flavour == "cpu" else ["attention_bias"]
        if number < len(deepstack):
            inputs.append("deepstack")
        session = self._part(inputs, [f"hidden.{number}"])
        kind: Any = np.float16 if "float16" in session.get_inputs()[0].type else np.float32
        past = np.zeros((1, text.num_key_value_heads, count if self.flavour == "cpu" else 0, text.head_dim), kind)
        feed: dict[str, NDArray[Any]] = {
            entry: x[None].astype(kind),
            f"past.{number}.key": past,
            f"past.{number}.value": past.copy(),
            "cos": cos,
            "sin": sin,
            "kept": np.array([count - 1], np.int32),
            "total": np.array(count, np.int32),
            "attention_bias": np.triu(np.full((count, count), -30000.0, kind), 1)[None, None],
            "deepstack": deepstack.astype(kind),
        }
        return session.run(None, {name: feed[name] for name in inputs})[0][0].astype(np.float32)

    def _part(self, inputs: list[str], outputs: list[str]) -> Any:
        """A session for a piece of the decoder as it was written, its weights read from the same file."""
        piece = onnx.utils.Extractor(self.decoder).extract_model(inputs, outputs)
        path = self.folder / ".piece.onnx"
        path.write_bytes(piece.SerializeToString())
        try:
            return self._session(path)
        finally:
            path.unlink()

    def _session(self, path: Path) -> Any:
        return ort.InferenceSession(str(path), self.options, providers=["CPUExecutionProvider"])

    def _fill(self, model: Any, prefix: str) -> None:
        """Read a module's parameters from the checkpoint."""
        for name, parameter in model.named_parameters():
            parameter.copy_(self.torch.from_numpy(self.checkpoint.weight(prefix + name)))


def _main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("checkpoint", "engine", "given", "found"):
        parser.add_argument(name, type=Path)
    for name in ("flavour", "vision", "decoder"):
        parser.add_argument(name)
    options = parser.parse_args()
    work = _Layers(Checkpoint(options.checkpoint), options.engine, np.load(options.given), options.flavour)
    print("vision encoder", flush=True)
    features, taps, vision_error = work.vision()
    embeds, embedding_error = work.embeddings()
    errors, last = work.layers(embeds, features, taps)
    print("logits", flush=True)
    logits_error, same = work.logits(last)
    limit, tokens = checks.DECODER[options.decoder], len(work.given["ids"])
    note = f"relative L2, {tokens} tokens, each layer given what the checkpoint's made"
    found = [
        Check("vision features", vision_error, checks.VISION[options.vision].rel_l2, "relative L2, features and taps"),
        Check("embeddings", embedding_error, checks.EMBEDDING, f"relative L2, {tokens} tokens"),
        Check("layers", max(errors), limit.rel_l2, f"worst of {len(errors)}, {note}"),
        Check(
            "logits", logits_error, limit.rel_l2, f"relative L2 of the head alone, {min(tokens, _LOGIT_ROWS)} tokens"
        ),
        Check("likeliest tokens", same, limit.top1, "share that is the same, the head alone", at_least=True),
    ]
    options.found.write_text(json.dumps([dataclasses.asdict(check) for check in found]), encoding="utf-8")


if __name__ == "__main__":
    _main()
