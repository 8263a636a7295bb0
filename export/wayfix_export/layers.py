"""What the graphs are made of: linear layers by precision, norms and activations, in two flavours.

`cpu` uses onnxruntime's fused operators; `trt` only standard ones, which TensorRT reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from wayfix_export.graph import MICROSOFT, GraphWriter
from wayfix_export.quantize import BLOCK, LEAST, blocked_int4, channels_int8, matmul_nbits

Flavour = Literal["cpu", "trt"]
Precision = Literal["fp32", "fp16", "int8", "int4"]

PRECISIONS: dict[Flavour, tuple[Precision, ...]] = {
    "cpu": ("fp32", "int8", "int4"),
    "trt": ("fp32", "fp16", "int8", "int4"),
}


def opset(flavour: Flavour, precision: Precision) -> int:
    """18 is what all of TensorRT's parsers read; scales in float16 came with 19, blocked INT4 with 21."""
    return {"int8": 19, "int4": 21}.get(precision, 18) if flavour == "trt" else 18


@dataclass
class Layers:
    """Adds layers to one graph in one flavour and precision."""

    graph: GraphWriter
    flavour: Flavour
    precision: Precision
    ranges: Mapping[str, float] = field(default_factory=dict)
    """Largest magnitude that calibration saw at the input of each linear layer; needed for `trt` at int8."""
    observe: bool = False
    """Whether every linear layer also gives out the largest magnitude of its input, as `largest:NAME`."""
    batched: bool = False
    """Whether many rows go through at once, as in the vision encoder: decides which 8-bit kernel is fast."""

    @property
    def kind(self) -> type[np.float16] | type[np.float32]:
        """Type of activations."""
        return np.float32 if self.flavour == "cpu" or self.precision == "fp32" else np.float16

    def linear(self, name: str, x: str, weight: NDArray[np.float32], bias: NDArray[np.float32] | None = None) -> str:
        """x (..., in) times a weight (out, in), plus a bias."""
        if self.observe:
            largest = self.graph.node("ReduceMax", self.graph.node("Abs", self._wide(x)), keepdims=0)
            self.graph.node("Identity", largest, outputs=[f"largest:{name}"])
            self.graph.output(f"largest:{name}", np.float32, [])
        product = self._product(name, x, weight)
        return product if bias is None else self.add(product, self.values(f"{name}.bias", bias))

    def _product(self, name: str, x: str, weight: NDArray[np.float32]) -> str:
        g = self.graph
        if self.precision in ("fp32", "fp16"):
            return g.node("MatMul", x, g.weight(f"{name}.weight", weight.T.astype(self.kind)))
        if self.flavour == "cpu":
            return self._dynamic_int8(name, x, weight) if self.batched else self._nbits(name, x, weight)
        if self.precision == "int4":
            values, scales = blocked_int4(weight)
            scale = g.weight(f"{name}.scale", scales.astype(np.float16))
            quantized = g.weight(f"{name}.weight", values)
            return g.node("MatMul", x, g.node("DequantizeLinear", quantized, scale, axis=0, block_size=BLOCK))
        return self._static_int8(name, x, weight)

    def _nbits(self, name: str, x: str, weight: NDArray[np.float32]) -> str:
        bits = {"int8": 8, "int4": 4}[self.precision]
        values, scales = matmul_nbits(weight, bits)
        operands = self.graph.weight(f"{name}.weight", values), self.graph.weight(f"{name}.scale", scales)
        out, width = weight.shape
        # Accuracy level 4 lets the kernel multiply in int8, with the activations quantized block by block as they come.
        attributes = {"N": out, "K": width, "bits": bits, "block_size": BLOCK, "accuracy_level": 4}
        return self.graph.node("MatMulNBits", x, *operands, domain=MICROSOFT, **attributes)

    def _dynamic_int8(self, name: str, x: str, weight: NDArray[np.float32]) -> str:
        signed, scales = channels_int8(weight)
        # Unsigned: with signed weights x86 processors that lack VNNI add products in 16 bits, and these overflow.
        values = (signed.astype(np.int16) + 128).astype(np.uint8)
        zeros = np.full(len(scales), 128, np.uint8)
        operands = (("weight", values), ("scale", scales), ("zero", zeros))
        stored = (self.graph.weight(f"{name}.{part}", array) for part, array in operands)
        return self.graph.node("DynamicQuantizeMatMul", x, *stored, domain=MICROSOFT)

    def _static_int8(self, name: str, x: str, weight: NDArray[np.float32]) -> str:
        g = self.graph
        step = np.asarray(max(self.ranges[name], LEAST) / 127, np.float16)
        zero = g.constant(0, np.int8)
        scale = g.weight(f"{name}.input_scale", step)
        x = g.node("DequantizeLinear", g.node("QuantizeLinear", x, scale, zero), scale, zero)
        values, scales = channels_int8(weight)
        zeros = g.weight(f"{name}.zero", np.zeros(len(scales), np.int8))
        w_scale = g.weight(f"{name}.scale", scales.astype(np.float16))
        return g.node(
            "MatMul", x, g.node("DequantizeLinear", g.weight(f"{name}.weight", values), w_scale, zeros, axis=1)
        )

    def values(self, name: str, array: NDArray[np.float32]) -> str:
        """A weight in the type of activations."""
        return self.graph.weight(name, array.astype(self.kind))

    def add(self, a: str, b: str) -> str:
        """Elementwise sum."""
        return self.graph.node("Add", a, b)

    def scalar(self, value: float) -> str:
        """A number in the type of activations."""
        return self.graph.constant(value, self.kind)

    def cast(self, x: str, kind: type[np.generic]) -> str:
        """x as another floating type; itself where it is of it already."""
        if kind == self.kind:
            return x
        return self.graph.node("Cast", x, to={np.float32: 1, np.float16: 10}[kind])

    def rms_norm(self, name: str, x: str, weight: NDArray[np.float32], epsilon: float) -> str:
        """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension."""
        g = self.graph
        if self.flavour == "cpu":
            return g.node("SimplifiedLayerNormalization", x, g.weight(name, weight), axis=-1, epsilon=epsilon)
        # In float32 whatever the activations are: squares of residuals overflow float16.
        wide = self._wide(x)
        mean = g.node("ReduceMean", g.node("Mul", wide, wide), g.constant([-1]), keepdims=1)
        root = g.node("Sqrt", g.node("Add", mean, g.constant(epsilon, np.float32)))
        return self._narrow(g.node("Mul", g.node("Div", wide, root), g.weight(name, weight)))

    def layer_norm(self, name: str, x: str, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> str:
        """LayerNorm over the last dimension, epsilon 1e-6 as in all of Qwen3-VL's vision."""
        g = self.graph
        parts = g.weight(f"{name}.weight", weight), g.weight(f"{name}.bias", bias)
        return self._narrow(g.node("LayerNormalization", self._wide(x), *parts, axis=-1, epsilon=1e-6))

    def silu(self, x: str) -> str:
        """x * sigmoid(x)."""
        if self.flavour == "cpu":
            return self.graph.node("QuickGelu", x, domain=MICROSOFT, alpha=1.0)
        return self.graph.node("Mul", x, self.graph.node("Sigmoid", x))

    def gelu(self, x: str, *, tanh: bool) -> str:
        """GELU, by the error function or its tanh approximation."""
        g = self.graph
        if self.flavour == "cpu":
            return g.node("FastGelu" if tanh else "Gelu", x, domain=MICROSOFT)
        if tanh:
            cube = g.node("Mul", g.node("Mul", g.node("Mul", x, x), x), self.scalar(0.044715))
            inner = g.node("Tanh", g.node("Mul", g.node("Add", x, cube), self.scalar(math.sqrt(2 / math.pi))))
        else:
            inner = g.node("Erf", g.node("Mul", x, self.scalar(math.sqrt(0.5))))
        return g.node("Mul", g.node("Mul", x, g.node("Add", inner, self.scalar(1))), self.scalar(0.5))

    def softmax(self, x: str) -> str:
        """Softmax over the last dimension, in float32."""
        return self._narrow(self.graph.node("Softmax", self._wide(x), axis=-1))

    def rotate(self, x: str, cos: str, sin: str, half: int) -> str:
        """Rotary positions with standard operators: x (..., 2 * half), cos and sin (..., half)."""
        g = self.graph
        first, second = f"{x}_first", f"{x}_second"
        g.node("Split", x, g.constant([half, half]), axis=-1, outputs=[first, second])
        left = g.node("Sub", g.node("Mul", first, cos), g.node("Mul", second, sin))
        right = g.node("Add", g.node("Mul", second, cos), g.node("Mul", first, sin))
        return g.node("Concat", left, right, axis=-1)

    def reshape(self, x: str, *dims: int) -> str:
        """x in other dimensions; 0 keeps one, -1 is what is left."""
        return self.graph.node("Reshape", x, self.graph.constant(dims))

    def transpose(self, x: str, *order: int) -> str:
        """x with its dimensions in another order."""
        return self.graph.node("Transpose", x, perm=list(order))

    def split(self, x: str, *sizes: int) -> list[str]:
        """x cut along its last dimension."""
        names = [f"{x}_part{number}" for number in range(len(sizes))]
        self.graph.node("Split", x, self.graph.constant(sizes), axis=-1, outputs=names)
        return names

    def pick(self, x: str, index: int) -> str:
        """x[index]."""
        return self.graph.node("Gather", x, self.graph.constant(index), axis=0)

    def _wide(self, x: str) -> str:
        return self.cast(x, np.float32)

    def _narrow(self, x: str) -> str:
        return x if self.kind == np.float32 else self.graph.node("Cast", x, to=10)
