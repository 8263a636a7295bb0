"""TensorRT reads and builds the graphs that are meant for it, and what it says of others is passed on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wayfix.errors import EngineNotBuilt, EngineUnsupported
from wayfix.policy.engine.images import ImageSpec
from wayfix.views.view import ImageSizes
from wayfix_export import tensorrt
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.graph import GraphWriter
from wayfix_export.profiles import Profiles, profiles_of
from wayfix_export.tensorrt import build_engine, load_tensorrt


@pytest.fixture(scope="session")
def builder() -> Any:
    """TensorRT or TensorRT-RTX, where one is installed."""
    try:
        return load_tensorrt()
    except EngineUnsupported as error:
        pytest.skip(str(error))


@pytest.fixture
def profiles(checkpoint: Checkpoint, spec: ImageSpec, sizes: ImageSizes) -> Profiles:
    return profiles_of(checkpoint.shape, spec, sizes)


@pytest.fixture
def double(tmp_path: Path) -> Path:
    """The smallest graph: y = x + x."""
    graph = GraphWriter(tmp_path / "double.onnx", 18)
    x = graph.input("x", np.float32, ["rows", 4])
    graph.node("Add", x, x, outputs=["y"])
    graph.output("y", np.float32, ["rows", 4])
    graph.save()
    return graph.path


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_decoders_of_every_precision_are_built(
    precision: str, builder: Any, graphs: Callable[..., Path], profiles: Profiles
) -> None:
    built = build_engine(graphs("trt", precision) / "decoder.onnx", profiles["decoder"])
    assert built.bytes > 100_000 and built.layers > 100
    assert built.builder.startswith(builder.__name__)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_vision_encoders_of_every_precision_are_built(
    precision: str, builder: Any, graphs: Callable[..., Path], profiles: Profiles
) -> None:
    assert build_engine(graphs("trt", "fp32", vision=precision) / "vision.onnx", profiles["vision"]).layers > 100


def test_embeddings_are_built(builder: Any, graphs: Callable[..., Path], profiles: Profiles) -> None:
    folder = graphs("trt", "fp32", embedding="fp16")
    assert build_engine(folder / "embedding.onnx", profiles["embedding"]).bytes > 2048 * 64


def test_the_engine_is_kept_where_it_is_asked_for(builder: Any, double: Path, tmp_path: Path) -> None:
    built = build_engine(double, {"rows": (1, 8, 64)}, tmp_path / "double.plan")
    assert (tmp_path / "double.plan").stat().st_size == built.bytes > 0
    assert {path.name for path in tmp_path.iterdir()} == {"double.onnx", "double.plan"}


@pytest.mark.parametrize(
    ("precision", "node"), [("fp32", r"GroupQueryAttention_\d+: Assertion failed"), ("int8", r"MatMulNBits_\d+: \w+")]
)
def test_a_graph_for_onnxruntime_is_refused_with_the_node_and_tensorrts_words(
    precision: str, node: str, builder: Any, graphs: Callable[..., Path], profiles: Profiles
) -> None:
    with pytest.raises(EngineNotBuilt, match=rf"TensorRT cannot read .*decoder\.onnx: {node}"):
        build_engine(graphs("cpu", precision) / "decoder.onnx", profiles["decoder"])


def test_a_file_that_is_no_graph_is_refused(builder: Any, tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"no graph")
    with pytest.raises(EngineNotBuilt, match=r"cannot read .*a\.onnx"):
        build_engine(tmp_path / "a.onnx", {})


def test_a_profile_that_lacks_a_dimension_is_told(builder: Any, double: Path) -> None:
    with pytest.raises(EngineNotBuilt, match="says nothing of rows"):
        build_engine(double, {"columns": (1, 2, 3)})


def test_a_profile_that_cannot_be_is_told(builder: Any, double: Path) -> None:
    with pytest.raises(EngineNotBuilt):
        build_engine(double, {"rows": (64, 8, 1)})


def test_without_tensorrt_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, double: Path) -> None:
    monkeypatch.setattr(tensorrt, "_MODULES", ("no_such_tensorrt", "nor_this"))
    with pytest.raises(
        EngineUnsupported, match="pip install --no-deps tensorrt-rtx-cu13-libs tensorrt-rtx-cu13-bindings"
    ):
        build_engine(double, {"rows": (1, 8, 64)})


def test_tensorrt_itself_goes_before_tensorrt_rtx() -> None:
    assert tensorrt._MODULES[0] == "tensorrt"
