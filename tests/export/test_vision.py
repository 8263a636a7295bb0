"""The vision encoder's graphs give the features that the checkpoint gives, for images of any size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from wayfix.policy.engine.chat import TokenPrompt
from wayfix.policy.engine.images import ImageSpec, Patches, make_patches
from wayfix_export import checks
from wayfix_export import runner as runner_module
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.checks import relative_l2
from wayfix_export.layers import Flavour, Precision
from wayfix_export.runner import GraphRunner
from wayfix_export.vision import write_vision

Runners = Callable[..., GraphRunner]
Features = Callable[[Patches], tuple[NDArray[np.float32], NDArray[np.float32]]]

KINDS = [("cpu", "fp32"), ("cpu", "int8"), ("trt", "fp32"), ("trt", "fp16"), ("trt", "int8")]
every_kind = pytest.mark.parametrize(("flavour", "precision"), KINDS)


@pytest.fixture(scope="session")
def wanted(reference: Any) -> Features:
    """What the checkpoint makes of patches: features (M, hidden), and those of the taps (taps, M, hidden)."""
    from wayfix_export.reference import ReferencePatches

    return lambda image: reference.features(ReferencePatches(image.pixels, (image.rows, image.columns)))


@pytest.fixture
def images(three_images: tuple[TokenPrompt, list[Patches]], spec: ImageSpec) -> list[Patches]:
    """Of the sizes of a prompt, a tall one, and one of a single token."""
    rng = np.random.default_rng(4)
    tall = make_patches(rng.integers(0, 256, (900, 96, 3), np.uint8), spec)
    small = spec.model_copy(update={"min_pixels": 32 * 32})
    single = make_patches(rng.integers(0, 256, (32, 32, 3), np.uint8), small)
    assert single.tokens == 1
    return [*three_images[1], tall, single]


@every_kind
def test_features_are_the_checkpoints(
    flavour: Flavour, precision: Precision, runner: Runners, images: list[Patches], wanted: Features
) -> None:
    running = runner(flavour, "fp32", vision=precision)
    for image in images:
        made, (features, taps) = running.encode(image), wanted(image)
        assert made["features"].dtype == made["deepstack"].dtype == np.float32
        assert made["features"].shape == features.shape == (image.tokens, 64)
        assert made["deepstack"].shape == (2, 1, image.tokens, 64)
        assert relative_l2(made["features"], features) <= checks.VISION[precision].rel_l2
        for tap in (0, 1):
            assert relative_l2(made["deepstack"][tap, 0], taps[tap]) <= checks.VISION[precision].rel_l2


@pytest.mark.parametrize("flavour", ["cpu", "trt"])
@pytest.mark.parametrize("mistake", ["vision_positions", "vision_rotary"])
def test_rows_taken_for_columns_give_features_far_from_them(
    flavour: Flavour,
    mistake: str,
    runner: Runners,
    images: list[Patches],
    wanted: Features,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = getattr(runner_module, mistake)
    monkeypatch.setattr(runner_module, mistake, lambda rows, columns, *more: right(columns, rows, *more))
    features = runner(flavour, "fp32").encode(images[0])["features"]
    assert relative_l2(features, wanted(images[0])[0]) > 100 * checks.VISION["fp32"].rel_l2


def test_taps_are_in_the_order_of_the_config(
    checkpoint: Checkpoint,
    with_config: Any,
    tmp_path: Path,
    graphs: Callable[..., Path],
    runner: Runners,
    session: Callable[[Path], Any],
    images: list[Patches],
) -> None:
    """A merger belongs to the block that stands at its place; features come in the order of blocks."""
    turned = with_config(lambda config: config["vision_config"].update(deepstack_visual_indexes=[2, 0]))
    write_vision(Checkpoint(turned), tmp_path / "vision.onnx", "cpu", "fp32")
    running = GraphRunner(graphs("cpu", "fp32"), checkpoint, threads=1)
    running.vision = session(tmp_path / "vision.onnx")
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from wayfix_export.reference import Reference, ReferencePatches

    image = images[1]
    taps = Reference(turned, threads=1).features(ReferencePatches(image.pixels, (image.rows, image.columns)))[1]
    made = running.encode(image)["deepstack"][:, 0]
    assert relative_l2(made, taps) <= checks.VISION["fp32"].rel_l2
    assert relative_l2(runner("cpu", "fp32").encode(image)["deepstack"][:, 0], taps) > 0.1


@every_kind
def test_inputs_and_outputs_are_as_described(
    flavour: Flavour, precision: Precision, graphs: Callable[..., Path]
) -> None:
    model = onnx.load(graphs(flavour, "fp32", vision=precision) / "vision.onnx", load_external_data=False)

    def signature(values: Any) -> dict[str, tuple[int, tuple[Any, ...]]]:
        return {
            value.name: (
                value.type.tensor_type.elem_type,
                tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim),
            )
            for value in values
        }

    single, whole = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    assert signature(model.graph.input) == {
        "pixels": (single, ("patches", 1536)),
        "table_indices": (whole, ("patches", 4)),
        "table_weights": (single, ("patches", 4)),
        "cos": (single, ("patches", 16)),
        "sin": (single, ("patches", 16)),
    }
    assert signature(model.graph.output) == {
        "features": (single, ("tokens", 64)),
        "deepstack": (single, (2, 1, "tokens", 64)),
    }
    assert ({node.domain for node in model.graph.node} == {""}) == (flavour == "trt")
