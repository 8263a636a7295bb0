"""Weights in 8 or 4 bits: symmetric, rounded to nearest, in blocks of the input dimension or per output channel."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

BLOCK = 32
"""Input channels that share a scale: the finest that both onnxruntime and TensorRT take."""

LEAST = 1e-5
"""Smallest magnitude a scale stands for: 1/127 of it must not vanish in float16, nor be divided by where all is 0."""

_ROWS = 4096
"""Output channels quantized at once: what this needs in memory must not grow with the vocabulary."""


def matmul_nbits(weight: NDArray[np.float32], bits: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A weight (out, in) as the operands of com.microsoft.MatMulNBits without zero points.

    Returns uint8 (out, blocks, BLOCK * bits / 8), values shifted to unsigned, two to a byte at 4 bits with the first in
    the low half, and float32 scales (out * blocks,). A block's largest magnitude becomes -2^(bits-1), the end of
    the range that has one step more.
    """
    blocks, half = -(-weight.shape[1] // BLOCK), 1 << (bits - 1)
    packed = np.empty((len(weight), blocks, BLOCK * bits // 8), np.uint8)
    all_scales = np.empty((len(weight), blocks), np.float32)
    for part in _row_slices(weight):
        rows = _in_blocks(weight[part])
        at = np.abs(rows).argmax(axis=2, keepdims=True)
        scales = np.take_along_axis(rows, at, axis=2)[:, :, 0] / -half
        values = _rounded(rows, scales.astype(np.float32), -half, half - 1)
        shifted = (values + half).astype(np.uint8)
        packed[part] = shifted if bits == 8 else shifted[:, :, 0::2] | (shifted[:, :, 1::2] << 4)
        all_scales[part] = scales
    return packed, all_scales.reshape(-1)


def blocked_int4(weight: NDArray[np.float32]) -> tuple[NDArray[ml_dtypes.int4], NDArray[np.float32]]:
    """A weight (out, in) as the operands of a blocked DequantizeLinear whose result is (in, out).

    Returns int4 (in, out) and float32 scales (in / BLOCK, out), all positive, as TensorRT wants them. Raises ValueError
    where `in` is no multiple of BLOCK.
    """
    if weight.shape[1] % BLOCK:
        raise ValueError(f"an input dimension of {weight.shape[1]} cannot be cut into blocks of {BLOCK}")
    values = np.empty(weight.shape, np.int8)
    all_scales = np.empty((len(weight), weight.shape[1] // BLOCK), np.float32)
    for part in _row_slices(weight):
        rows = _in_blocks(weight[part])
        scales = (np.maximum(np.abs(rows).max(axis=2), LEAST) / 7).astype(np.float32)
        values[part] = _rounded(rows, scales, -7, 7).reshape(values[part].shape)
        all_scales[part] = scales
    return np.ascontiguousarray(values.T).astype(ml_dtypes.int4), np.ascontiguousarray(all_scales.T)


def channels_int8(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A weight (out, in) as int8 (in, out) and one positive float32 scale an output channel (out,)."""
    values, all_scales = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)
    for part in _row_slices(weight):
        scales = np.maximum(np.abs(weight[part]).max(axis=1), LEAST) / 127
        values[part] = np.clip(np.rint(weight[part] / scales[:, None]), -127, 127)
        all_scales[part] = scales
    return np.ascontiguousarray(values.T), all_scales


def _row_slices(weight: NDArray[np.float32]) -> Iterator[slice]:
    return (slice(start, start + _ROWS) for start in range(0, len(weight), _ROWS))


def _in_blocks(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """(out, in) as (out, blocks, BLOCK), the last block filled up with zeros."""
    return np.pad(rows, ((0, 0), (0, -rows.shape[1] % BLOCK))).reshape(len(rows), -1, BLOCK)


def _rounded(rows: NDArray[np.float32], scales: NDArray[np.float32], least: int, most: int) -> NDArray[np.int16]:
    safe = np.where(scales == 0, 1, scales)
    return np.clip(np.rint(rows / safe[:, :, None]), least, most).astype(np.int16)
