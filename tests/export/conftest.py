"""A tiny Qwen3-VL checkpoint with random weights, prompts for it, its graphs, and transformers to compare them with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from wayfix.agent.messages import Message, Prompt
from wayfix.geo.boxes import WorldBox
from wayfix.geo.transforms import ViewTransform
from wayfix.policy.engine.chat import Chat, TokenPrompt
from wayfix.policy.engine.images import ImageSpec, Patches, make_patches
from wayfix.policy.engine.manifest import Target
from wayfix.scene.scene import Scene
from wayfix.synth.expressions import Expression
from wayfix.views.view import ImageSizes, View
from wayfix_export import export
from wayfix_export.calibrate import observe_ranges
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.checks import Check
from wayfix_export.decoder import write_decoder, write_embedding
from wayfix_export.episodes import Episode, record
from wayfix_export.export import Exported, ExportOptions, export_checkpoint, parse_precision
from wayfix_export.layers import Flavour, Precision
from wayfix_export.runner import GraphRunner
from wayfix_export.synthetic import write_checkpoint
from wayfix_export.vision import write_vision

SIZES = ImageSizes(320, 256, 256)
ChangeConfig = Callable[[dict[str, Any]], None]


# ---- checkpoints


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    write_checkpoint(folder, "tiny")
    return folder


@pytest.fixture(scope="session")
def checkpoint(checkpoint_folder: Path) -> Checkpoint:
    return Checkpoint(checkpoint_folder)


@pytest.fixture(scope="session")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Of the same shape, with other weights."""
    folder = tmp_path_factory.mktemp("checkpoints") / "other"
    write_checkpoint(folder, "tiny", seed=1)
    return Checkpoint(folder)


@pytest.fixture
def copied(checkpoint_folder: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be changed."""
    return shutil.copytree(checkpoint_folder, tmp_path / "copied")


@pytest.fixture
def with_config(copied: Path) -> Callable[[ChangeConfig], Path]:
    """The checkpoint with a changed config.json."""

    def make(change: ChangeConfig) -> Path:
        path = copied / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))
        return copied

    return make


# ---- what it reads


@pytest.fixture(scope="session")
def spec(checkpoint: Checkpoint) -> ImageSpec:
    return ImageSpec.from_preprocessor_config(checkpoint.json("preprocessor_config.json"))


@pytest.fixture(scope="session")
def chat(checkpoint: Checkpoint, spec: ImageSpec) -> Chat:
    template = (checkpoint.folder / "chat_template.jinja").read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(checkpoint.folder / "tokenizer.json"))
    return Chat(template, tokenizer, checkpoint.shape.image_token_id, spec)


@pytest.fixture(scope="session")
def sizes() -> ImageSizes:
    """Long sides of the images of all episodes."""
    return SIZES


@pytest.fixture(scope="session")
def episodes(small_city_scene: Scene, small_city_expressions: list[Expression]) -> list[Episode]:
    """Two recorded searches, the first in images of three different sizes."""
    queries = [expression.query for expression in small_city_expressions]
    found = record(small_city_scene, queries, SIZES)

    def shapes(episode: Episode) -> set[tuple[int, ...]]:
        return {view.image.shape for message in episode[-1].prompt.messages for view in message.views}

    found.sort(key=lambda episode: len(shapes(episode)), reverse=True)
    assert len(shapes(found[0])) >= 3
    return found[:2]


def photo(height: int, width: int, seed: int) -> NDArray[np.uint8]:
    """Coarse blocks of colour under noise: pictures with something in them."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (-(-height // 40), -(-width // 40), 3))
    blocks = coarse.repeat(40, axis=0).repeat(40, axis=1)[:height, :width]
    return np.clip(blocks + rng.normal(0, 8, blocks.shape), 0, 255).astype(np.uint8)


def view(number: int, height: int, width: int) -> View:
    extent = WorldBox(0, 0, width, height)
    return View(f"v{number}", photo(height, width, number), extent, ViewTransform.north_up(extent, width, height))


@pytest.fixture(scope="session")
def three_images(chat: Chat, spec: ImageSpec) -> tuple[TokenPrompt, list[Patches]]:
    """A prompt with images of three sizes: as it is wanted, to be shrunk to whole tokens, to be grown."""
    views = [view(0, 256, 320), view(1, 290, 250), view(2, 60, 130)]
    messages = (
        Message("system", ("Boxes are integers 0 to 1000.",)),
        Message("user", (views[0], "Find: the red car next to the church.")),
        Message("assistant", ("I look closer.",)),
        Message("tool", (views[1], "Turns left: 3.", views[2])),
    )
    tokens = chat.tokens(Prompt((), messages, "", must_answer=False))
    return tokens, [make_patches(image.image, spec) for image in tokens.images]


# ---- its graphs


@pytest.fixture(scope="session")
def ranges(checkpoint: Checkpoint, chat: Chat, spec: ImageSpec, episodes: list[Episode]) -> dict[str, float]:
    """What calibration saw in the recorded searches."""
    return observe_ranges(checkpoint, chat, spec, episodes, lambda _: None)


Graphs = Callable[..., Path]


@pytest.fixture(scope="session")
def graphs(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Graphs:
    """Folders with the three graphs of the checkpoint: graphs(flavour, decoder precision, vision=, embedding=)."""
    made: dict[tuple[str, ...], Path] = {}

    def write(flavour: Flavour, decoder: Precision, vision: Precision = "fp32", embedding: Precision = "fp32") -> Path:
        key = flavour, decoder, vision, embedding
        if key not in made:
            folder = tmp_path_factory.mktemp("graphs")
            static = flavour == "trt" and "int8" in (decoder, vision)
            ranges = request.getfixturevalue("ranges") if static else None
            write_vision(checkpoint, folder / "vision.onnx", flavour, vision, ranges=ranges)
            write_embedding(checkpoint, folder / "embedding.onnx", embedding)
            write_decoder(checkpoint, folder / "decoder.onnx", flavour, decoder, ranges=ranges)
            made[key] = folder
        return made[key]

    return write


@pytest.fixture(scope="session")
def other_graphs(other_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of the other checkpoint, for cpu in float32."""
    folder = tmp_path_factory.mktemp("graphs")
    write_vision(other_checkpoint, folder / "vision.onnx", "cpu", "fp32")
    write_embedding(other_checkpoint, folder / "embedding.onnx", "fp32")
    write_decoder(other_checkpoint, folder / "decoder.onnx", "cpu", "fp32")
    return folder


@pytest.fixture(scope="session")
def runner(graphs: Graphs, checkpoint: Checkpoint) -> Callable[..., GraphRunner]:
    """The graphs of `graphs`, running."""
    return lambda *what, **more: GraphRunner(graphs(*what, **more), checkpoint, threads=1)


@pytest.fixture(scope="session")
def session() -> Callable[[Path], Any]:
    """An onnxruntime session of a graph."""

    def load(path: Path) -> Any:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    return load


# ---- the checkpoint in transformers


def shrink_boxes(patch: pytest.MonkeyPatch) -> None:
    """Compare boxes in a few images only; test_boxes does so in all."""
    from wayfix_export import boxes

    patch.setattr(boxes, "ASPECTS", (0.75, 2.0))
    patch.setattr(boxes, "LONG_SIDES", (333,))


@pytest.fixture
def few_boxes(reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare boxes in a few images only."""
    shrink_boxes(monkeypatch)


@pytest.fixture(scope="session")
def reference(checkpoint_folder: Path) -> Iterator[Any]:
    """The checkpoint run by transformers."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from wayfix_export.reference import Reference

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        # Tests run side by side, and torch's threads wait for one another by spinning on the core that others need.
        patch.setattr(torch, "set_num_threads", lambda _: None)
        yield Reference(checkpoint_folder)


@pytest.fixture
def recorded(episodes: list[Episode], monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ImageSizes]]:
    """Exports use the session's episodes; here is what they ask for."""
    asked: list[tuple[int, ImageSizes]] = []

    def given(count: int, sizes: ImageSizes) -> list[Episode]:
        asked.append((count, sizes))
        return episodes[:count]

    monkeypatch.setattr(export, "recorded_in_a_city", given)
    return asked


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch, recorded: Any) -> None:
    """Every engine is taken for proved: what is tested are files and commands."""
    monkeypatch.setattr(export, "_prove", lambda *_: [Check("logits", 1e-7, 1e-5, "relative L2")])


@pytest.fixture(scope="session")
def exported(
    checkpoint_folder: Path, episodes: list[Episode], reference: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Target, str], Exported]:
    """The checkpoint exported for a target at a precision, and proved; not to be changed."""
    made: dict[tuple[Target, str], Exported] = {}

    def run(target: Target, precision: str) -> Exported:
        if (target, precision) not in made:
            options = ExportOptions(
                target=target, precision=parse_precision(precision, target), sizes=SIZES, episodes=2, parity="whole"
            )
            out = tmp_path_factory.mktemp("engines") / f"{target}-{precision}"
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(export, "recorded_in_a_city", lambda *_: episodes)
                shrink_boxes(patch)
                made[target, precision] = export_checkpoint(checkpoint_folder, out, options)
        return made[target, precision]

    return run


@pytest.fixture(scope="session")
def expected(reference: Any, three_images: tuple[TokenPrompt, list[Patches]]) -> NDArray[np.float32]:
    """The checkpoint's logits after every token of the prompt with three images."""
    from wayfix_export.reference import ReferencePatches

    prompt, patches = three_images
    images = [ReferencePatches(image.pixels, (image.rows, image.columns)) for image in patches]
    return reference.logits(prompt.ids.tolist(), images, np.arange(len(prompt.ids)))
