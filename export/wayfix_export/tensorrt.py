"""Graphs built into TensorRT engines, on a Jetson by its own TensorRT, elsewhere by TensorRT-RTX as a check.

TensorRT-RTX can be installed from PyPI and needs no GPU to build, but its engines run on RTX GPUs only: here it tells
that a graph parses and builds. The two have one programming interface; only `load_tensorrt` knows of both.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from wayfix.errors import EngineNotBuilt, EngineUnsupported

_MODULES = ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings")
Profile = Mapping[str, tuple[int, int, int]]


@dataclass(frozen=True)
class Built:
    """A graph that was built."""

    layers: int
    bytes: int
    parse_s: float
    build_s: float
    builder: str
    """The library and its version."""


def load_tensorrt() -> Any:
    """TensorRT, else TensorRT-RTX. Raises EngineUnsupported where neither is installed."""
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise EngineUnsupported(
        "no TensorRT here: on a Jetson it comes with JetPack; elsewhere, to check that graphs build, run: "
        "pip install --no-deps tensorrt-rtx-cu13-libs tensorrt-rtx-cu13-bindings"
    )


def build_engine(graph: Path, profile: Profile, out: Path | None = None) -> Built:
    """Parse a graph and build it; `profile` has each free dimension's smallest, usual and largest value.

    The engine is kept at `out`, if given. Raises EngineNotBuilt with TensorRT's own words, or EngineUnsupported.
    """
    trt = load_tensorrt()
    said: list[str] = []
    logger = _logger(trt, said)
    builder = trt.Builder(logger)
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    parser = trt.OnnxParser(network, logger)
    began = time.monotonic()
    if not parser.parse_from_file(str(graph)):
        errors = [parser.get_error(number) for number in range(min(parser.num_errors, 3))]
        told = "; ".join(f"{error.node_name() or 'the file'}: {error.desc()}" for error in errors)
        raise EngineNotBuilt(f"TensorRT cannot read {graph}: {told}")
    parsed = time.monotonic()
    config = builder.create_builder_config()
    config.add_optimization_profile(_profile(builder, network, graph, profile))
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise EngineNotBuilt(f"TensorRT cannot build {graph}: {'; '.join(said[-3:]) or 'it gave no reason'}")
    if out is not None:
        out.write_bytes(bytes(plan))
    name = f"{trt.__name__} {getattr(trt, '__version__', '')}".strip()
    return Built(network.num_layers, plan.nbytes, parsed - began, time.monotonic() - parsed, name)


def _profile(builder: Any, network: Any, graph: Path, profile: Profile) -> Any:
    shapes = builder.create_optimization_profile()
    names = _dimension_names(graph)
    for number in range(network.num_inputs):
        tensor = network.get_input(number)
        dims = names[tensor.name]
        if any(isinstance(dim, str) for dim in dims):
            missing = [dim for dim in dims if isinstance(dim, str) and dim not in profile]
            if missing:
                raise EngineNotBuilt(f"{graph}: the profile says nothing of {', '.join(missing)}")
            three = [[profile[dim][at] if isinstance(dim, str) else dim for dim in dims] for at in range(3)]
            shapes.set_shape(tensor.name, *three)
    return shapes


def _dimension_names(graph: Path) -> dict[str, list[str | int]]:
    model = onnx.load(graph, load_external_data=False)
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }


def _logger(trt: Any, said: list[str]) -> Any:
    class Logger(trt.ILogger):
        """Keeps TensorRT's errors in place of printing them."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if int(severity) <= int(trt.ILogger.Severity.ERROR):
                said.append(message.strip())

    return Logger()
