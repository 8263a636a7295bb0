"""Graphs are written whole, their weights in a file that can be mapped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from wayfix_export.graph import MICROSOFT, GraphWriter

PAGE = 4096
Session = Callable[[Path], Any]


def external(path: Path) -> dict[str, dict[str, str]]:
    """Of each weight that is stored beside the graph, where it is."""
    model = onnx.load(path, load_external_data=False)
    return {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    }


def adding(path: Path, *weights: NDArray[Any], opset: int = 18) -> GraphWriter:
    """A graph that adds weights (width,) of float32 to x."""
    graph = GraphWriter(path, opset)
    x = graph.input("x", np.float32, ["rows", weights[0].shape[-1]])
    for number, weight in enumerate(weights):
        x = graph.node("Add", x, graph.weight(f"w{number}", weight))
    graph.node("Identity", x, outputs=["y"])
    graph.output("y", np.float32, ["rows", weights[0].shape[-1]])
    return graph


def numbers(width: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(width, np.float32)


def test_a_graph_computes_with_small_and_large_weights(tmp_path: Path, session: Session) -> None:
    weights = [numbers(1000, seed) for seed in range(3)] + [numbers(1)]
    graph = adding(tmp_path / "sum.onnx", *weights)
    graph.save()
    x = np.zeros((2, 1000), np.float32)
    assert np.allclose(session(graph.path).run(None, {"x": x})[0], sum(weights), atol=1e-6)


def test_large_weights_begin_at_pages_of_the_file_beside_the_graph(tmp_path: Path) -> None:
    weights = [numbers(width, width) for width in (1000, 2000, 3001)]
    graph = GraphWriter(tmp_path / "many.onnx", 18)
    for weight in weights:
        graph.weight(f"w{len(weight)}", weight)
    graph.save()
    places, content = external(graph.path), (tmp_path / "many.onnx.data").read_bytes()
    assert len(places) == 3
    for weight in weights:
        where = places[f"w{len(weight)}"]
        start, length = int(where["offset"]), int(where["length"])
        assert where["location"] == "many.onnx.data"
        assert start % PAGE == 0 and length == weight.nbytes
        assert content[start : start + length] == weight.tobytes()


def test_weights_are_written_as_they_come_and_not_kept(tmp_path: Path) -> None:
    graph = GraphWriter(tmp_path / "a.onnx", 18)
    graph.weight("w", np.zeros(1 << 20, np.float32))
    assert (tmp_path / "a.onnx.data").stat().st_size >= 4 << 20
    graph.discard()


def test_small_weights_are_in_the_graph_and_leave_no_file(tmp_path: Path) -> None:
    graph = adding(tmp_path / "small.onnx", numbers(10))
    graph.save()
    assert external(graph.path) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["small.onnx"]


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.int32, np.int8, np.uint8])
@pytest.mark.parametrize("count", [3, 3000])
def test_every_type_is_kept(tmp_path: Path, kind: type[np.generic], count: int) -> None:
    values = (np.arange(count) % 100).astype(kind)
    graph = GraphWriter(tmp_path / "a.onnx", 18)
    graph.weight("w", values)
    graph.save()
    read = onnx.numpy_helper.to_array(onnx.load(graph.path).graph.initializer[0])
    assert read.dtype == kind and np.array_equal(read, values)


def test_weights_that_do_not_lie_in_order_in_memory_are_put_in_order(tmp_path: Path) -> None:
    turned = numbers(2000).reshape(40, 50).T
    graph = GraphWriter(tmp_path / "a.onnx", 18)
    graph.weight("large", turned)
    graph.weight("small", turned[:3, ::7])
    graph.save()
    read = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(graph.path).graph.initializer}
    assert np.array_equal(read["large"], turned)
    assert np.array_equal(read["small"], turned[:3, ::7])


@given(st.lists(st.integers(-8, 7), min_size=1, max_size=50))
def test_int4_is_packed_two_to_a_byte_the_first_in_the_low_half(
    tmp_path_factory: pytest.TempPathFactory, values: list[int]
) -> None:
    graph = GraphWriter(tmp_path_factory.mktemp("int4") / "a.onnx", 21)
    graph.weight("w", np.array(values).astype(ml_dtypes.int4))
    graph.save()
    stored = (graph.path.parent / "a.onnx.data").read_bytes()
    halves = [half for byte in stored for half in (byte & 0xF, byte >> 4)]
    assert len(stored) == -(-len(values) // 2)
    assert halves[: len(values)] == [value & 0xF for value in values]
    read = onnx.numpy_helper.to_array(onnx.load(graph.path).graph.initializer[0])
    assert read.astype(int).tolist() == values


def test_equal_constants_are_shared_and_others_are_not(tmp_path: Path) -> None:
    graph = GraphWriter(tmp_path / "a.onnx", 18)
    first = graph.constant([0, 1])
    assert graph.constant((0, 1)) == first
    different = {
        first,
        graph.constant([1, 0]),
        graph.constant([[0, 1]]),
        graph.constant([0, 1], np.int32),
        graph.constant(0),
        graph.constant([0]),
        graph.constant(0, np.float32),
        graph.constant(-0.0, np.float32),
    }
    assert len(different) == 8
    graph.discard()


def test_an_invalid_graph_is_not_passed_off_as_one(tmp_path: Path) -> None:
    graph = GraphWriter(tmp_path / "a.onnx", 18)
    graph.node("Add", "nothing", "nowhere", outputs=["y"])
    graph.output("y", np.float32, [1])
    with pytest.raises(onnx.checker.ValidationError):
        graph.save()


def test_only_graphs_with_onnxruntimes_operators_name_their_domain(tmp_path: Path) -> None:
    plain = adding(tmp_path / "plain.onnx", numbers(4))
    plain.save()
    fused = GraphWriter(tmp_path / "fused.onnx", 18)
    fused.node("QuickGelu", fused.input("x", np.float32, [1]), domain=MICROSOFT, outputs=["y"], alpha=1.0)
    fused.output("y", np.float32, [1])
    fused.save()
    domains = [{opset.domain for opset in onnx.load(graph.path).opset_import} for graph in (plain, fused)]
    assert domains == [{""}, {"", MICROSOFT}]


def test_the_same_graph_is_the_same_bytes(tmp_path: Path) -> None:
    content = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        graph = adding(folder / "g.onnx", numbers(1000), numbers(3000)[:1000])
        graph.save()
        content.append([path.read_bytes() for path in sorted(folder.iterdir())])
    assert content[0] == content[1]


def test_a_node_without_a_value_for_an_optional_attribute_lacks_it(tmp_path: Path) -> None:
    graph = adding(tmp_path / "a.onnx", numbers(4))
    graph.node("ReduceMax", "y", outputs=["most"], keepdims=0, noop_with_empty_axes=None)
    graph.save()
    node = next(node for node in onnx.load(graph.path).graph.node if node.op_type == "ReduceMax")
    assert [attribute.name for attribute in node.attribute] == ["keepdims"]
