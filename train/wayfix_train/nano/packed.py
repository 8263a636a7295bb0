"""Qwen3-VL's forward pass for training on a CPU: many sequences share one prefix, images of one size run together.

The weights and the arithmetic are the stock model's (a test compares them); what differs is that a scene's overview is
read once for all queries on it, where the stock forward would read it for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from wayfix.policy.engine.positions import Rotary, vision_positions, vision_rotary
from wayfix_train.nano.layout import IMAGE_SPEC, MERGE, PATCH


@dataclass
class Features:
    """What the language model gets of images of one size."""

    tokens: Tensor
    """(N, T, hidden)."""
    deep: list[Tensor]
    """Each (N, T, hidden): added after the first layers (DeepStack)."""


@dataclass
class Batch:
    """Sequences of different lengths behind a shared prefix, padded at their ends."""

    ids: Tensor
    """(B, L) int64."""
    positions: NDArray[np.int64]
    """(3, B, L): M-RoPE."""
    mask: Tensor | None
    """(B, 1, L, prefix + L) bool: what each token sees; None where it is plainly causal and nothing is padded."""
    image_rows: Tensor
    """(N, 2): batch index and place of every image token, in the order of `images`."""
    images: Tensor | None = None
    """(N, hidden)."""
    deep: list[Tensor] = field(default_factory=list)
    """Each (N, hidden)."""


@dataclass
class Past:
    """Keys and values of a prefix, by layer, each (1, kv heads, P, head_dim)."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens of the prefix."""
        return self.keys[0].shape[2] if self.keys else 0


@dataclass
class Looks:
    """Where supervised tokens look: attention logits over the keys, by supervised layer."""

    layers: tuple[int, ...]
    heads: int
    rows: Tensor
    """(R, 2): batch index and place of the supervised queries."""
    logits: list[Tensor] = field(default_factory=list)
    """Filled in: each (R, heads, prefix + L)."""


def encode_images(visual: Any, images: NDArray[np.uint8]) -> Features:
    """Images of one size, uint8 (N, height, width, 3), sides multiples of a token."""
    count, height, width, _ = images.shape
    rows, columns = height // PATCH, width // PATCH
    device = visual.pos_embed.weight.device
    mean, std = (torch.tensor(values, device=device) * 255 for values in (IMAGE_SPEC.mean, IMAGE_SPEC.std))
    pixels = (torch.tensor(images, device=device).float() - mean) / std
    blocks = pixels.view(count, rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH, 3)
    patches = blocks.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(count, rows * columns, -1)
    # Both frames of a still image are the same, so their weights can be added.
    proj = visual.patch_embed.proj
    hidden = functional.linear(patches, proj.weight.sum(dim=2).flatten(1), proj.bias)
    where = vision_positions(rows, columns, visual.num_grid_per_side, MERGE)
    table = visual.pos_embed(torch.tensor(where.indices, device=device))
    hidden = hidden + (table * torch.tensor(where.weights, device=device)[:, :, None]).sum(1)
    head_dim = visual.config.hidden_size // visual.config.num_heads
    turns = vision_rotary(rows, columns, MERGE, head_dim, 10_000.0)
    cos, sin = (torch.tensor(a, device=device).repeat(1, 2) for a in turns)
    deep = []
    for number, block in enumerate(visual.blocks):
        hidden = hidden + _vision_attention(block.attn, block.norm1(hidden), cos, sin)
        hidden = hidden + block.mlp(block.norm2(hidden))
        if number in visual.deepstack_visual_indexes:
            merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(number)]
            deep.append(merger(hidden.flatten(0, 1)).view(count, rows * columns // MERGE**2, -1))
    tokens = visual.merger(hidden.flatten(0, 1)).view(count, rows * columns // MERGE**2, -1)
    return Features(tokens, deep)


def _vision_attention(attention: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    count, length, width = x.shape
    q, k, v = attention.qkv(x).view(count, length, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    q, k = q * cos + _half_turned(q) * sin, k * cos + _half_turned(k) * sin
    out = functional.scaled_dot_product_attention(q, k, v)
    return attention.proj(out.transpose(1, 2).reshape(count, length, width))


def read_text(text: Any, batch: Batch, past: Past | None = None, looks: Looks | None = None) -> tuple[Tensor, Past]:
    """The language model over a batch: hidden states (B, L, hidden) after the last norm, and the batch's own keys."""
    x = text.embed_tokens(batch.ids)
    rows = batch.image_rows[:, 0], batch.image_rows[:, 1]
    if batch.images is not None:
        x = x.index_put(rows, batch.images)
    cos, sin = _text_rotary(text, batch.positions)
    own = Past()
    for number, layer in enumerate(text.layers):
        x = x + _text_attention(layer.self_attn, layer.input_layernorm(x), cos, sin, batch, past, own, number, looks)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
        if number < len(batch.deep):
            x = x.index_put(rows, batch.deep[number], accumulate=True)
    return text.norm(x), own


def _text_rotary(text: Any, positions: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    config = text.config
    rope = config.rope_parameters
    rotary = Rotary(config.head_dim, rope["rope_theta"], tuple(rope["mrope_section"]))
    _, count, length = positions.shape
    cos, sin = rotary.rows(positions.reshape(3, -1))
    shape = count, 1, length, config.head_dim
    device = text.embed_tokens.weight.device
    turned, crossed = (torch.from_numpy(a).to(device).repeat(1, 2).view(shape) for a in (cos, sin))
    return turned, crossed


def _text_attention(
    attention: Any,
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    batch: Batch,
    past: Past | None,
    own: Past,
    number: int,
    looks: Looks | None,
) -> Tensor:
    count, length, _ = x.shape
    dim = attention.head_dim
    q = attention.q_norm(attention.q_proj(x).view(count, length, -1, dim)).transpose(1, 2)
    k = attention.k_norm(attention.k_proj(x).view(count, length, -1, dim)).transpose(1, 2)
    v = attention.v_proj(x).view(count, length, -1, dim).transpose(1, 2)
    q, k = q * cos + _half_turned(q) * sin, k * cos + _half_turned(k) * sin
    own.keys.append(k)
    own.values.append(v)
    if past is not None:
        k = torch.cat([past.keys[number].expand(count, -1, -1, -1), k], dim=2)
        v = torch.cat([past.values[number].expand(count, -1, -1, -1), v], dim=2)
    if looks is not None and number in looks.layers:
        at, place = looks.rows[:, 0], looks.rows[:, 1]
        asked = q[at, : looks.heads, place]  # (R, heads, dim), all of them heads of the first key head
        looks.logits.append(torch.einsum("rhd,rkd->rhk", asked, k[at, 0]) * attention.scaling)
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=batch.mask, is_causal=batch.mask is None)
    return attention.o_proj(out.transpose(1, 2).reshape(count, length, -1))


def _half_turned(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def pad_batch(
    sequences: Sequence[NDArray[np.int64]],
    positions: Sequence[NDArray[np.int64]],
    seen: Sequence[NDArray[np.bool_] | None],
    prefix: int,
    device: torch.device,
) -> Batch:
    """Sequences as one batch. `seen` are masks (L, L) of what a sequence's tokens see in it; None for causal."""
    longest = max(len(ids) for ids in sequences)
    ids = np.zeros((len(sequences), longest), np.int64)
    places = np.zeros((3, len(sequences), longest), np.int64)
    mask = np.zeros((len(sequences), 1, longest, prefix + longest), np.bool_)
    mask[..., :prefix] = True
    mask[:, 0, np.arange(longest), prefix + np.arange(longest)] = True
    for number, (row, place, see) in enumerate(zip(sequences, positions, seen, strict=True)):
        n = len(row)
        ids[number, :n], places[:, number, :n] = row, place
        mask[number, 0, :n, prefix : prefix + n] = np.tril(np.ones((n, n), np.bool_)) if see is None else see
    nothing = torch.zeros((0, 2), dtype=torch.int64, device=device)
    return Batch(torch.from_numpy(ids).to(device), places, torch.from_numpy(mask).to(device), nothing)
