"""A small writer of ONNX graphs. Weights stream to a file beside them: no model is ever whole in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

MICROSOFT = "com.microsoft"
_ALIGN = 4096
"""Offsets of weights are multiples of a page, so that a runtime may map the file."""

_INLINE_BYTES = 1024
_TYPES: dict[Any, int] = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(ml_dtypes.int4): TensorProto.INT4,
}

Dims = list[int | str]


class GraphWriter:
    """Nodes are added in order; every method returns the name of a value. `save` ends it."""

    def __init__(self, path: Path, opset: int) -> None:
        """`path` is that of the graph, weights go to `<path>.data`."""
        self.path = path
        self.opset = opset
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._inside: list[Any] = []
        self._data = path.with_suffix(".onnx.data").open("wb")
        self._constants: dict[tuple[Any, ...], str] = {}
        self._count = 0

    def input(self, name: str, kind: type[np.generic], dims: Dims) -> str:
        """An input of the graph; a dimension given by name is free."""
        self._inputs.append(helper.make_tensor_value_info(name, _TYPES[np.dtype(kind)], dims))
        return name

    def output(self, name: str, kind: type[np.generic], dims: Dims) -> None:
        """Declare a value as an output of the graph."""
        self._outputs.append(helper.make_tensor_value_info(name, _TYPES[np.dtype(kind)], dims))

    def known(self, name: str, kind: type[np.generic], dims: Dims) -> None:
        """Declare the type of a value inside, at which the graph can be cut."""
        self._inside.append(helper.make_tensor_value_info(name, _TYPES[np.dtype(kind)], dims))

    def node(self, op: str, *inputs: str, domain: str = "", outputs: list[str] | None = None, **attributes: Any) -> str:
        """Add a node and return its first output. An empty input name leaves an optional input out."""
        self._count += 1
        names = outputs or [f"{op}_{self._count}"]
        attributes = {name: value for name, value in attributes.items() if value is not None}
        self._nodes.append(
            helper.make_node(op, list(inputs), names, name=f"{op}_{self._count}", domain=domain, **attributes)
        )
        return names[0]

    def constant(self, value: Any, kind: type[np.generic] = np.int64) -> str:
        """A small constant, shared by all who ask for the same."""
        array = np.asarray(value, dtype=kind)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.weight(f"constant_{len(self._constants)}", array)
        return self._constants[key]

    def weight(self, name: str, array: NDArray[Any]) -> str:
        """A weight; all but small ones are written to the data file now."""
        if array.dtype == np.dtype(ml_dtypes.int4):
            return self._external(name, array.shape, TensorProto.INT4, _packed_int4(array))
        array = np.asarray(array, order="C")
        if array.nbytes <= _INLINE_BYTES:
            tensor = helper.make_tensor(name, _TYPES[array.dtype], array.shape, array.tobytes(), raw=True)
            self._weights.append(tensor)
            return name
        return self._external(name, array.shape, _TYPES[array.dtype], array)

    def save(self) -> None:
        """Write the graph. Raises onnx.checker.ValidationError where it is none: an error of ours."""
        self._data.close()
        graph = helper.make_graph(
            self._nodes, self.path.stem, self._inputs, self._outputs, self._weights, value_info=self._inside
        )
        opsets = [helper.make_opsetid("", self.opset)]
        if any(node.domain == MICROSOFT for node in self._nodes):
            opsets.append(helper.make_opsetid(MICROSOFT, 1))
        # IR 10 is the newest that every onnxruntime from 1.18 on reads; INT4 needs it.
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="wayfix")
        self.path.write_bytes(model.SerializeToString())
        if not self.path.with_suffix(".onnx.data").stat().st_size:
            self.path.with_suffix(".onnx.data").unlink()
        if len(opsets) == 1:
            onnx.checker.check_model(str(self.path))

    def discard(self) -> None:
        """Close the files of a graph that will not be finished."""
        self._data.close()

    def _aligned(self) -> int:
        position = self._data.tell()
        self._data.write(b"\0" * (-position % _ALIGN))
        return self._data.tell()

    def _external(self, name: str, shape: tuple[int, ...], kind: int, array: NDArray[Any]) -> str:
        start = self._aligned()
        array.tofile(self._data)
        return self._declare(name, shape, kind, start)

    def _declare(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> str:
        tensor = TensorProto(name=name, dims=shape, data_type=kind, data_location=TensorProto.EXTERNAL)
        where = {"location": self.path.with_suffix(".onnx.data").name, "offset": start}
        where["length"] = self._data.tell() - start
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))
        self._weights.append(tensor)
        return name


def _packed_int4(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Two values a byte, the first in the low half (ONNX, TensorProto.INT4)."""
    flat = array.astype(np.int8).reshape(-1).view(np.uint8) & np.uint8(0xF)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    packed: NDArray[np.uint8] = flat[0::2] | (flat[1::2] << np.uint8(4))
    return packed
