"""Images as patches, exactly as a Qwen3-VL checkpoint's own processor cuts them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field

_LARGEST_ASPECT = 200


class ImageSpec(BaseModel):
    """The constants of a checkpoint's preprocessing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    patch_size: int = Field(16, gt=0)
    temporal_patch_size: int = Field(2, gt=0)
    merge_size: int = Field(2, gt=0)
    min_pixels: int = Field(gt=0)
    max_pixels: int = Field(gt=0)
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @classmethod
    def from_preprocessor_config(cls, config: dict[str, Any]) -> ImageSpec:
        """From a checkpoint's preprocessor_config.json, whose `size` older ones wrote as min_pixels and max_pixels."""
        size = config.get("size") or {}
        return cls(
            patch_size=config["patch_size"],
            temporal_patch_size=config["temporal_patch_size"],
            merge_size=config["merge_size"],
            min_pixels=config.get("min_pixels") or size["shortest_edge"],
            max_pixels=config.get("max_pixels") or size["longest_edge"],
            mean=tuple(config["image_mean"]),
            std=tuple(config["image_std"]),
        )

    @property
    def unit(self) -> int:
        """Sides are multiples of this many pixels: one token of the language model."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True, eq=False)
class Patches:
    """An image as the vision encoder reads it."""

    pixels: NDArray[np.float32]
    """(rows * columns, 3 * temporal * patch * patch), in blocks of merge x merge patches."""
    rows: int
    columns: int
    """Patches down and across, before merging."""


def resized_shape(height: int, width: int, spec: ImageSpec) -> tuple[int, int]:
    """Height and width an image is brought to: near its own, in multiples of a token, within the bounds of pixels.

    Source: smart_resize of Qwen2-VL's processor. Raises ValueError where a side is 0 or 200 times the other.
    """
    if min(height, width) < 1 or max(height, width) > _LARGEST_ASPECT * min(height, width):
        raise ValueError(
            f"an image of {width} x {height} pixels cannot be read: no side may be {_LARGEST_ASPECT} times the other"
        )
    unit = spec.unit
    high, wide = round(height / unit) * unit, round(width / unit) * unit
    if high * wide > spec.max_pixels:
        shrink = math.sqrt(height * width / spec.max_pixels)
        high = max(unit, math.floor(height / shrink / unit) * unit)
        wide = max(unit, math.floor(width / shrink / unit) * unit)
    elif high * wide < spec.min_pixels:
        grow = math.sqrt(spec.min_pixels / (height * width))
        high, wide = math.ceil(height * grow / unit) * unit, math.ceil(width * grow / unit) * unit
    return high, wide


def make_patches(image: NDArray[np.uint8], spec: ImageSpec) -> Patches:
    """Resize, normalise and cut an RGB image uint8 (height, width, 3)."""
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"an image is uint8 (height, width, 3), got {image.dtype} {image.shape}")
    shape = resized_shape(image.shape[0], image.shape[1], spec)
    if image.shape[:2] != shape:
        # The models were trained on Pillow's bicubic filter, which OpenCV's is not.
        picture = Image.fromarray(image).resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
        image = np.asarray(picture)
    size, merge, times = spec.patch_size, spec.merge_size, spec.temporal_patch_size
    rows, columns = shape[0] // size, shape[1] // size
    # Bytes are put in order first, four times fewer of them to move than of floats.
    blocks = image.reshape(rows // merge, merge, size, columns // merge, merge, size, 3)
    ordered = np.ascontiguousarray(blocks.transpose(0, 3, 1, 4, 6, 2, 5)).reshape(rows * columns, 3, size * size)
    pixels = np.empty((rows * columns, 3, times, size * size), np.float32)
    for channel, (mean, std) in enumerate(zip(spec.mean, spec.std, strict=True)):
        # Every value of a byte, normalised once.
        levels = ((np.arange(256) / 255 - mean) / std).astype(np.float32)
        # A still image stands for all frames of a patch.
        pixels[:, channel] = levels[ordered[:, channel]][:, None]
    return Patches(pixels.reshape(rows * columns, -1), rows, columns)


def picture_of(patches: Patches, spec: ImageSpec) -> NDArray[np.float32]:
    """The picture, float32 (height, width, 3) of 0 to 255, that patches were cut from."""
    size, merge = spec.patch_size, spec.merge_size
    first = patches.pixels.reshape(-1, 3, spec.temporal_patch_size, size * size)[:, :, 0]
    mean, std = (np.array(values, np.float32)[:, None] for values in (spec.mean, spec.std))
    shape = (patches.rows // merge, patches.columns // merge, merge, merge, 3, size, size)
    blocks = ((first * std + mean) * 255).reshape(shape).transpose(0, 2, 5, 1, 3, 6, 4)
    return np.ascontiguousarray(blocks).reshape(patches.rows * size, patches.columns * size, 3)
