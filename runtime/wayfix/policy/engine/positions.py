"""Where patches and tokens are: the positions that Qwen3-VL's encoder and language model work with, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SIZES_KEPT = 64


@dataclass(frozen=True, eq=False)
class VisionPositions:
    """Where the N patches of an image are, in merge-block order; the arrays are read-only."""

    indices: NDArray[np.int64]
    """(N, 4): the entries of the learned position table around each patch, as rows of the flattened table."""
    weights: NDArray[np.float32]
    """(N, 4): the share of each entry; the four of a patch sum to 1."""
    row_column: NDArray[np.int64]
    """(N, 2): row and column of each patch."""


@lru_cache(maxsize=_SIZES_KEPT)
def vision_positions(rows: int, columns: int, table_side: int, merge: int) -> VisionPositions:
    """Positions of the patches of an image of rows x columns of them, both multiples of `merge`.

    The table of table_side x table_side entries is stretched over the image, corners aligned. Source:
    transformers.vision_utils, get_vision_interpolation_indices_and_weights (bilinear) and get_vision_position_ids.
    """
    blocks = np.arange(rows * columns).reshape(rows // merge, columns // merge, merge, merge)
    inner = np.indices(blocks.shape)
    row, column = (inner[0] * merge + inner[2]).ravel(), (inner[1] * merge + inner[3]).ravel()
    row_at, row_weight = _taps(row, rows, table_side)
    column_at, column_weight = _taps(column, columns, table_side)
    indices = (row_at[:, :, None] * table_side + column_at[:, None]).reshape(-1, 4)
    weights = (row_weight[:, :, None] * column_weight[:, None]).reshape(-1, 4)
    row_column = np.stack([row, column], axis=1)
    _freeze(indices, weights, row_column)
    return VisionPositions(indices, weights, row_column)


def _taps(at: NDArray[np.int64], count: int, side: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The two entries of an axis around each place, and their weights, both (N, 2)."""
    # All in float32, as the source does: the weights are then the same to the bit.
    place = at.astype(np.float32) * np.float32(side - 1) / np.float32(max(count - 1, 1))
    low = np.floor(place)
    entries = np.clip(low.astype(np.int64)[:, None] + np.arange(2), 0, side - 1)
    weights = 1 - np.abs((place - low)[:, None] - np.arange(2, dtype=np.float32))
    return entries, weights


@lru_cache(maxsize=_SIZES_KEPT)
def vision_rotary(
    rows: int, columns: int, merge: int, head_dim: int, theta: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """cos and sin, float32 (N, head_dim / 2), of the vision encoder's attention; read-only.

    Half of the channels turn by row, half by column. Source: Qwen3VLVisionRotaryEmbedding of transformers.
    """
    # Rows and columns do not depend on the table.
    places = vision_positions(rows, columns, 2, merge).row_column.astype(np.float32)
    angles = (places[:, :, None] * _frequencies(head_dim // 2, theta)).reshape(len(places), -1)
    cos, sin = np.cos(angles), np.sin(angles)
    _freeze(cos, sin)
    return cos, sin


def _frequencies(channels: int, theta: float) -> NDArray[np.float32]:
    """Radians per position of each pair of channels, (channels / 2,)."""
    # An error in the last bit grows with the position. torch's float32 power comes out as float64's rounded to float32;
    # numpy's own float32 power does not.
    exponents = np.arange(0, channels, 2, dtype=np.float32) / np.float32(channels)
    return np.float32(1) / np.power(theta, exponents.astype(np.float64)).astype(np.float32)


def _freeze(*arrays: NDArray[Any]) -> None:
    """Make read-only what a cache hands out more than once."""
    for array in arrays:
        array.flags.writeable = False


def token_positions(
    ids: NDArray[np.int64], grids: Sequence[tuple[int, int]], image_token: int, start: int, merge: int
) -> tuple[NDArray[np.int64], int]:
    """M-RoPE positions, int64 (3, N), of new tokens that follow position `start` - 1, and the position after them.

    Text counts up on all three axes; an image stands at one time and spreads over rows and columns, and what follows it
    continues behind its longer side. `grids` are rows and columns in patches of the images whose pad tokens `ids`
    holds, in order and whole. Raises ValueError where pads and grids do not match. Source: Qwen3VLModel.get_rope_index.
    """
    pads = np.flatnonzero(ids == image_token)
    positions = np.empty((3, len(ids)), np.int64)
    done, used = 0, 0
    for number, (rows, columns) in enumerate(grids, 1):
        high, wide = rows // merge, columns // merge
        span = pads[used : used + high * wide]
        if not len(span) or len(span) < high * wide or span[-1] - span[0] != high * wide - 1:
            raise ValueError(f"image {number} of {len(grids)} does not have {high * wide} pad tokens in a row")
        first = int(span[0])
        positions[:, done:first] = start + np.arange(first - done)
        start += first - done
        done, used = first + high * wide, used + high * wide
        down, across = np.divmod(np.arange(high * wide), wide)
        positions[:, first:done] = start
        positions[1, first:done] += down
        positions[2, first:done] += across
        start += max(high, wide)
    if used != len(pads):
        raise ValueError(f"{len(pads) - used} pad tokens belong to no image")
    positions[:, done:] = start + np.arange(len(ids) - done)
    return positions, start + len(ids) - done


class Rotary:
    """Turns M-RoPE positions into the rows of a rotation table that GroupQueryAttention reads."""

    def __init__(
        self, head_dim: int, theta: float, mrope_section: tuple[int, int, int], interleaved: bool = True
    ) -> None:
        """`mrope_section` says how many of the head_dim / 2 frequencies turn by time, row and column.

        Interleaved, as in Qwen3-VL, frequencies take the axes in turn as far as the sections of row and column reach,
        and the rest is time. Otherwise the sections follow each other, as in Qwen2-VL. Source:
        recomposition_frequencies of Qwen3VLTextRotaryEmbedding and of Qwen2VLRotaryEmbedding.
        """
        if sum(mrope_section) != head_dim // 2:
            raise ValueError(f"the sections {mrope_section} do not make up {head_dim // 2} frequencies")
        self._frequencies = _frequencies(head_dim, theta)
        if interleaved:
            self._axis = np.zeros(head_dim // 2, np.int64)
            for axis in (1, 2):
                self._axis[axis : mrope_section[axis] * 3 : 3] = axis
        else:
            self._axis = np.repeat(np.arange(3), mrope_section)

    def rows(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """cos and sin, float32 (N, head_dim / 2), of positions (3, N)."""
        # take() leaves rows contiguous, as onnxruntime wants them, where indexing would not.
        angles = np.take(positions.T.astype(np.float32), self._axis, axis=1) * self._frequencies
        return np.cos(angles), np.sin(angles)
