"""The language model as a graph with a KV cache.

Inputs, S new tokens after P kept ones, batch 1:

| name | cpu | trt |
| --- | --- | --- |
| inputs_embeds | float32 (1, S, hidden) | the same in the graph's type |
| deepstack | (taps, 1, S, hidden), zero at text | the same |
| logit_positions | int64 (K,): of which new tokens logits are wanted | the same |
| cos, sin | float32 (C, head_dim / 2): rows for all positions of the buffer | (S, head_dim / 2): of the new tokens |
| kept | int32 (1,): P + S - 1, and `total` int32 (): P + S | - |
| attention_bias | - | (1, 1, S, P + S), 0 or very negative |
| past.N.key, .value | (1, kv_heads, C, head_dim), a buffer of C >= P + S positions | (1, kv_heads, P, head_dim) |

Outputs: logits float32 (1, K, vocabulary), and present.N.key, .value: the same buffer (cpu), or P + S positions (trt).
A row of `cos` and `sin` belongs to a token, not to a number: M-RoPE's three positions are worked out outside, by
wayfix.policy.engine.positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from wayfix_export.checkpoint import Checkpoint
from wayfix_export.graph import MICROSOFT, GraphWriter
from wayfix_export.layers import Flavour, Layers, Precision, opset

_MODEL = "model.language_model"


def write_decoder(
    checkpoint: Checkpoint,
    path: Path,
    flavour: Flavour,
    precision: Precision,
    *,
    ranges: Mapping[str, float] | None = None,
    observe: bool = False,
) -> None:
    """Write the decoder's graph; see Layers for `ranges` and `observe`.

    The values `hidden.N`, which leave layer N, are where the graph can be cut to look at each layer alone.
    """
    graph = GraphWriter(path, opset(flavour, precision))
    try:
        _Decoder(checkpoint, graph, Layers(graph, flavour, precision, ranges or {}, observe=observe)).build()
    except BaseException:
        graph.discard()
        raise
    graph.save()


class _Decoder:
    def __init__(self, checkpoint: Checkpoint, graph: GraphWriter, make: Layers) -> None:
        self.checkpoint, self.graph, self.make = checkpoint, graph, make
        self.text = checkpoint.shape.text_config
        self.taps = len(checkpoint.shape.vision_config.deepstack_visual_indexes)
        self.kind = make.kind

    def build(self) -> None:
        text, graph = self.text, self.graph
        x = graph.input("inputs_embeds", self.kind, [1, "new", text.hidden_size])
        deepstack = graph.input("deepstack", self.kind, [self.taps, 1, "new", text.hidden_size])
        positions = graph.input("logit_positions", np.int64, ["logits"])
        self._shared_inputs()
        for layer in range(text.num_hidden_layers):
            x = self._layer(layer, x)
            if layer < self.taps:
                x = self.make.add(x, self.make.pick(deepstack, layer))
            x = graph.node("Identity", x, outputs=[f"hidden.{layer}"])
            graph.known(x, self.kind, [1, "new", text.hidden_size])
        x = graph.node("Gather", x, positions, axis=1)
        x = self.make.rms_norm("norm", x, self.checkpoint.weight(f"{_MODEL}.norm.weight"), text.rms_norm_eps)
        logits = self.make.linear("lm_head", x, self.checkpoint.weight(self.checkpoint.output_name))
        wide = self.make.cast(logits, np.float32)
        graph.node("Identity", wide, outputs=["logits"])
        graph.output("logits", np.float32, [1, "logits", text.vocab_size])

    def _shared_inputs(self) -> None:
        graph, half = self.graph, self.text.head_dim // 2
        if self.make.flavour == "cpu":
            self.rotary = [graph.input(name, np.float32, ["capacity", half]) for name in ("cos", "sin")]
            self.lengths = graph.input("kept", np.int32, [1]), graph.input("total", np.int32, [])
            return
        # Angles come in float32, and are narrowed here: positions beyond 2048 have no exact float16.
        self.rotary = []
        for name in ("cos", "sin"):
            graph.input(name, np.float32, ["new", half])
            self.rotary.append(name if self.kind == np.float32 else graph.node("Cast", name, to=10))
        self.bias = graph.input("attention_bias", self.kind, [1, 1, "new", "all"])

    def _layer(self, layer: int, x: str) -> str:
        make, text, name = self.make, self.text, f"layers.{layer}"
        normed = make.rms_norm(f"{name}.input_norm", x, self._weight(layer, "input_layernorm"), text.rms_norm_eps)
        parts = [self._weight(layer, f"self_attn.{part}_proj") for part in "qkv"]
        qkv = make.linear(f"{name}.qkv", normed, np.concatenate(parts))
        q, k, v = make.split(qkv, *(len(part) for part in parts))
        q = self._head_norm(layer, "q", q, text.num_attention_heads)
        k = self._head_norm(layer, "k", k, text.num_key_value_heads)
        attended = self._fused(layer, q, k, v) if make.flavour == "cpu" else self._plain(layer, q, k, v)
        x = make.add(x, make.linear(f"{name}.o", attended, self._weight(layer, "self_attn.o_proj")))
        normed = make.rms_norm(
            f"{name}.mlp_norm", x, self._weight(layer, "post_attention_layernorm"), text.rms_norm_eps
        )
        both = np.concatenate([self._weight(layer, "mlp.gate_proj"), self._weight(layer, "mlp.up_proj")])
        gate, up = make.split(make.linear(f"{name}.gate_up", normed, both), *[text.intermediate_size] * 2)
        hidden = self.graph.node("Mul", make.silu(gate), up)
        return make.add(x, make.linear(f"{name}.down", hidden, self._weight(layer, "mlp.down_proj")))

    def _head_norm(self, layer: int, part: str, x: str, heads: int) -> str:
        """Norm each head by itself: (1, S, heads * dim) -> the same (cpu), or (1, S, heads, dim) (trt)."""
        make, dim = self.make, self.text.head_dim
        fused = make.flavour == "cpu"
        x = make.reshape(x, 1, -1, dim) if fused else make.reshape(x, 1, -1, heads, dim)
        weight = self._weight(layer, f"self_attn.{part}_norm")
        x = make.rms_norm(f"layers.{layer}.{part}_norm", x, weight, self.text.rms_norm_eps)
        return make.reshape(x, 1, -1, heads * dim) if fused else x

    def _fused(self, layer: int, q: str, k: str, v: str) -> str:
        text, graph = self.text, self.graph
        dims: list[int | str] = [1, text.num_key_value_heads, "capacity", text.head_dim]
        past = [graph.input(f"past.{layer}.{part}", np.float32, dims) for part in ("key", "value")]
        present = [f"present.{layer}.{part}" for part in ("key", "value")]
        out = graph.node(
            "GroupQueryAttention",
            *(q, k, v, *past, *self.lengths, *self.rotary),
            domain=MICROSOFT,
            outputs=[f"attended.{layer}", *present],
            num_heads=text.num_attention_heads,
            kv_num_heads=text.num_key_value_heads,
            do_rotary=1,
        )
        for name in present:
            graph.output(name, np.float32, dims)
        return out

    def _plain(self, layer: int, q: str, k: str, v: str) -> str:
        make, text, graph = self.make, self.text, self.graph
        kv, dim, groups = text.num_key_value_heads, text.head_dim, text.num_attention_heads // text.num_key_value_heads
        v = make.reshape(v, 1, -1, kv, dim)
        q, k, v = (make.transpose(part, 0, 2, 1, 3) for part in (q, k, v))
        q, k = (make.rotate(part, self.rotary[0], self.rotary[1], dim // 2) for part in (q, k))
        new: list[int | str] = [1, kv, "past", dim]
        whole = []
        for part, value in (("key", k), ("value", v)):
            past = graph.input(f"past.{layer}.{part}", self.kind, new)
            name = f"present.{layer}.{part}"
            whole.append(graph.node("Concat", past, value, axis=2, outputs=[name]))
            graph.output(name, self.kind, [1, kv, "all", dim])
        # Query heads that share a key are rows of one product, so that keys need not be repeated.
        q = make.reshape(graph.node("Mul", q, make.scalar(dim**-0.5)), 1, kv, groups, -1, dim)
        keys = make.reshape(make.transpose(whole[0], 0, 1, 3, 2), 1, kv, 1, dim, -1)
        scores = graph.node(
            "Add", graph.node("MatMul", q, keys), graph.node("Unsqueeze", self.bias, graph.constant([0]))
        )
        mixed = graph.node("MatMul", make.softmax(scores), make.reshape(whole[1], 1, kv, 1, -1, dim))
        mixed = make.reshape(mixed, 1, kv * groups, -1, dim)
        return make.reshape(make.transpose(mixed, 0, 2, 1, 3), 1, -1, kv * groups * dim)

    def _weight(self, layer: int, name: str) -> np.ndarray:
        return self.checkpoint.weight(f"{_MODEL}.layers.{layer}.{name}.weight")


def write_embedding(checkpoint: Checkpoint, path: Path, precision: Precision) -> None:
    """Token ids int64 (1, S) -> inputs_embeds (1, S, hidden), in `fp32` or kept in `fp16` and given out in float32."""
    text = checkpoint.shape.text_config
    graph = GraphWriter(path, 18)
    try:
        kind = np.float32 if precision == "fp32" else np.float16
        table = checkpoint.weight(f"{_MODEL}.embed_tokens.weight").astype(kind)
        graph.input("input_ids", np.int64, [1, "new"])
        rows = graph.node("Gather", graph.weight("embed_tokens", table), "input_ids", axis=0)
        graph.node("Cast", rows, to=1, outputs=["inputs_embeds"])
        graph.output("inputs_embeds", np.float32, [1, "new", text.hidden_size])
    except BaseException:
        graph.discard()
        raise
    graph.save()
