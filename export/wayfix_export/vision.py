"""The vision encoder as a graph: one image a run.

Inputs, N patches in merge-block order: pixels float32 (N, patch values); table_indices int64 (N, 4) and table_weights
float32 (N, 4), the interpolation of the learned position table; cos, sin float32 (N, head_dim / 2). Outputs, M tokens,
N / merge^2: features (M, hidden) and deepstack (taps, 1, M, hidden), float32 both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from wayfix_export.checkpoint import Checkpoint
from wayfix_export.graph import MICROSOFT, GraphWriter
from wayfix_export.layers import Flavour, Layers, Precision, opset

_MODEL = "model.visual"
_HEADS_A_NODE = 2


def write_vision(
    checkpoint: Checkpoint,
    path: Path,
    flavour: Flavour,
    precision: Precision,
    *,
    ranges: Mapping[str, float] | None = None,
    observe: bool = False,
) -> None:
    """Write the vision encoder's graph; see Layers for `ranges` and `observe`."""
    graph = GraphWriter(path, opset(flavour, precision))
    try:
        _Vision(
            checkpoint, graph, Layers(graph, flavour, precision, ranges or {}, observe=observe, batched=True)
        ).build()
    except BaseException:
        graph.discard()
        raise
    graph.save()


class _Vision:
    def __init__(self, checkpoint: Checkpoint, graph: GraphWriter, make: Layers) -> None:
        self.checkpoint, self.graph, self.make = checkpoint, graph, make
        self.shape = checkpoint.shape.vision_config

    def build(self) -> None:
        graph, make, shape = self.graph, self.make, self.shape
        pixels = graph.input("pixels", np.float32, ["patches", shape.patch_values])
        indices = graph.input("table_indices", np.int64, ["patches", 4])
        weights = graph.input("table_weights", np.float32, ["patches", 4])
        self.rotary: list[str] = []
        for name in ("cos", "sin"):
            graph.input(name, np.float32, ["patches", shape.head_dim // 2])
            self.rotary.append(name if make.kind == np.float32 else graph.node("Cast", name, to=10))
        if make.flavour == "cpu":
            # The fused operator looks its row up by position: here the rows are those of the patches themselves.
            count = graph.node("Shape", pixels, start=0, end=1)
            ones = graph.node("Range", graph.constant(0), make.pick(count, 0), graph.constant(1))
            self.order = make.reshape(ones, 1, -1)
        x = self._patches(pixels)
        x = make.add(x, self._positions(indices, weights))
        deepstack = []
        for block in range(shape.depth):
            x = self._block(block, x)
            if block in shape.deepstack_visual_indexes:
                number = shape.deepstack_visual_indexes.index(block)
                merged = self._merge(f"deepstack_merger_list.{number}", x, norm_after=True)
                deepstack.append(make.reshape(merged, 1, 1, -1, shape.out_hidden_size))
        features = self._merge("merger", x, norm_after=False)
        for name, value in (("features", features), ("deepstack", graph.node("Concat", *deepstack, axis=0))):
            graph.node("Identity", make.cast(value, np.float32), outputs=[name])
        graph.output("features", np.float32, ["tokens", shape.out_hidden_size])
        graph.output("deepstack", np.float32, [len(deepstack), 1, "tokens", shape.out_hidden_size])

    def _patches(self, pixels: str) -> str:
        # A convolution whose stride is its kernel is one product per patch.
        weight = self._weight("patch_embed.proj.weight").reshape(self.shape.hidden_size, -1)
        x = pixels if self.make.kind == np.float32 else self.graph.node("Cast", pixels, to=10)
        return self.make.linear("patch_embed", x, weight, self._weight("patch_embed.proj.bias"))

    def _positions(self, indices: str, weights: str) -> str:
        graph, make = self.graph, self.make
        table = make.values("pos_embed", self._weight("pos_embed.weight"))
        rows = graph.node("Gather", table, indices, axis=0)
        weights = weights if make.kind == np.float32 else graph.node("Cast", weights, to=10)
        weighted = graph.node("Mul", rows, graph.node("Unsqueeze", weights, graph.constant([2])))
        return graph.node("ReduceSum", weighted, graph.constant([1]), keepdims=0)

    def _block(self, block: int, x: str) -> str:
        make, name = self.make, f"blocks.{block}"
        qkv = self._linear(f"{name}.attn.qkv", self._norm(f"{name}.norm1", x))
        attended = self._fused(qkv) if make.flavour == "cpu" else self._plain(qkv)
        x = make.add(x, self._linear(f"{name}.attn.proj", attended))
        hidden = self._linear(f"{name}.mlp.linear_fc1", self._norm(f"{name}.norm2", x))
        return make.add(x, self._linear(f"{name}.mlp.linear_fc2", make.gelu(hidden, tanh=True)))

    def _fused(self, qkv: str) -> str:
        make, shape, graph = self.make, self.shape, self.graph
        parts = make.split(make.reshape(qkv, 1, -1, 3 * shape.hidden_size), *[shape.hidden_size] * 3)
        q, k = (
            graph.node("RotaryEmbedding", part, self.order, *self.rotary, domain=MICROSOFT, num_heads=shape.num_heads)
            for part in parts[:2]
        )
        # A few heads a node: a run can be ended between nodes only, and attention takes the longest by far.
        groups = shape.num_heads // _HEADS_A_NODE if shape.num_heads % _HEADS_A_NODE == 0 else shape.num_heads
        widths = [shape.hidden_size // groups] * groups
        pieces = zip(*(make.split(part, *widths) for part in (q, k, parts[2])), strict=True)
        heads = shape.num_heads // groups
        mixed = [graph.node("MultiHeadAttention", *piece, domain=MICROSOFT, num_heads=heads) for piece in pieces]
        return make.reshape(graph.node("Concat", *mixed, axis=-1), -1, shape.hidden_size)

    def _plain(self, qkv: str) -> str:
        make, shape, graph = self.make, self.shape, self.graph
        heads, dim = shape.num_heads, shape.head_dim
        parts = (make.reshape(part, -1, heads, dim) for part in make.split(qkv, *[shape.hidden_size] * 3))
        q, k, v = (make.transpose(part, 1, 0, 2) for part in parts)
        q, k = (make.rotate(part, self.rotary[0], self.rotary[1], dim // 2) for part in (q, k))
        scores = graph.node("MatMul", graph.node("Mul", q, make.scalar(dim**-0.5)), make.transpose(k, 0, 2, 1))
        mixed = make.transpose(graph.node("MatMul", make.softmax(scores), v), 1, 0, 2)
        return make.reshape(mixed, -1, shape.hidden_size)

    def _merge(self, name: str, x: str, *, norm_after: bool) -> str:
        """Join each block of merge^2 patches into one token of the language model."""
        width = self.shape.hidden_size * self.shape.spatial_merge_size**2
        if norm_after:
            x = self._norm(f"{name}.norm", self.make.reshape(x, -1, width))
        else:
            x = self.make.reshape(self._norm(f"{name}.norm", x), -1, width)
        hidden = self.make.gelu(self._linear(f"{name}.linear_fc1", x), tanh=False)
        return self._linear(f"{name}.linear_fc2", hidden)

    def _norm(self, name: str, x: str) -> str:
        return self.make.layer_norm(name, x, self._weight(f"{name}.weight"), self._weight(f"{name}.bias"))

    def _linear(self, name: str, x: str) -> str:
        return self.make.linear(name, x, self._weight(f"{name}.weight"), self._weight(f"{name}.bias"))

    def _weight(self, name: str) -> np.ndarray:
        return self.checkpoint.weight(f"{_MODEL}.{name}")
