"""Where patches and tokens are: the positions that Qwen3-VL's encoder and language model work with, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class VisionPositions:
    """Of N patches in merge-block order."""

    indices: NDArray[np.int64]
    """(N, 4): the entries of the learned position table around each patch."""
    weights: NDArray[np.float32]
    """(N, 4): by which they are mixed."""
    row_column: NDArray[np.int64]
    """(N, 2)."""


@lru_cache(maxsize=64)
def vision_positions(rows: int, columns: int, table_side: int, merge: int) -> VisionPositions:
    """Positions of an image's patches; the table of side x side entries is stretched over the image, corners aligned.

    Source: transformers.vision_utils, get_vision_interpolation_indices_and_weights (bilinear) and get_vision_position_ids.
    """
    blocks = np.arange(rows * columns).reshape(rows // merge, columns // merge, merge, merge)
    inner = np.indices(blocks.shape)
    row, column = (inner[0] * merge + inner[2]).ravel(), (inner[1] * merge + inner[3]).ravel()
    row_at, row_weight = _taps(row, rows, table_side)
    column_at, column_weight = _taps(column, columns, table_side)
    indices = (row_at[:, :, None] * table_side + column_at[:, None]).reshape(-1, 4)
    weights = (row_weight[:, :, None] * column_weight[:, None]).reshape(-1, 4)
    made = VisionPositions(indices, weights, np.stack([row, column], axis=1))
    for array in (made.indices, made.weights, made.row_column):
        array.flags.writeable = False
    return made


def _taps(at: NDArray[np.int64], count: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The two entries of an axis around each place, and their weights."""
    place = at.astype(np.float32) * np.float32(side - 1) / np.float32(max(count - 1, 1))
    low = np.floor(place)
    entries = np.clip(low.astype(np.int64)[:, None] + np.arange(2), 0, side - 1)
    weights = np.clip(1 - np.abs(place[:, None] - low[:, None] - np.arange(2)), 0, None)
    return entries, weights.astype(np.float32)


@lru_cache(maxsize=64)
def _vision_rotary(rows: int, columns: int, merge: int, head_dim: int, theta: float) -> tuple[NDArray[np.float32], ...]:
    half = head_dim // 2
    frequencies = 1 / theta ** (np.arange(0, half, 2, dtype=np.float32) / half)
    places = vision_positions(rows, columns, 2, merge).row_column
    angles = (places[:, :, None].astype(np.float32) * frequencies.astype(np.float32)).reshape(len(places), half)
    made = np.cos(angles), np.sin(angles)
    for array in made:
        array.flags.writeable = False
    return made


def vision_rotary(
    rows: int, columns: int, merge: int, head_dim: int, theta: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin (N, head_dim / 2) of the vision encoder's attention: half of the channels turn by row, half by column."""
    cos, sin = _vision_rotary(rows, columns, merge, head_dim, theta)
    return cos, sin


def token_positions(
    ids: NDArray[np.int64], grids: Sequence[tuple[int, int]], image_token: int, start: int, merge: int
) -> tuple[NDArray[np.int64], int]:
    """M-RoPE positions (3, N) of new tokens that follow position `start` - 1, and the position after them.

    Text counts up on all three axes; an image stands at one time and spreads over rows and columns, and what follows it
    continues behind its longer side. `grids` are rows and columns in patches of the images, in order, whose pad tokens
    `ids` holds whole. Raises ValueError where pads and grids do not fit. Source: Qwen3VLModel.get_rope_index.
    """
    pads = np.flatnonzero(ids == image_token)
    positions = np.empty((3, len(ids)), np.int64)
    done, used = 0, 0
    for rows, columns in grids:
        high, wide = rows // merge, columns // merge
        span = pads[used : used + high * wide]
        if len(span) < high * wide or span[-1] - span[0] != high * wide - 1:
            raise ValueError(f"an image of {high * wide} tokens has not as many pad tokens in a row")
        first = int(span[0])
        positions[:, done:first] = start + np.arange(first - done)
        start += first - done
        place = np.arange(high * wide)
        done = first + high * wide
        positions[:, first:done] = start + np.stack([np.zeros_like(place), place // wide, place % wide])
        start += max(high, wide)
        used += high * wide
    if used != len(pads):
        raise ValueError(f"{len(pads) - used} pad tokens belong to no image")
    positions[:, done:] = start + np.arange(len(ids) - done)
    return positions, start + len(ids) - done


class Rotary:
    """Turns M-RoPE positions into rows of the rotation table that the decoder reads."""

    def __init__(self, head_dim: int, theta: float, mrope_section: tuple[int, int, int]) -> None:
        """Frequencies take their axis in turn (time, row, column, time, ...) as far as each axis' section reaches.

        Source: Qwen3VLTextRotaryEmbedding.recomposition_frequencies.
        """
        self._frequencies = (1 / theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)).astype(np.float32)
        self._axis = np.zeros(head_dim // 2, np.int64)
        for axis in (1, 2):
            self._axis[axis : mrope_section[axis] * 3 : 3] = axis

    def rows(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """cos and sin, float32 (N, head_dim / 2), of positions (3, N)."""
        angles = positions[self._axis].T.astype(np.float32) * self._frequencies
        return np.cos(angles), np.sin(angles)
