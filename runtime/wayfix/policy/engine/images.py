"""Images as patches, exactly as a Qwen3-VL checkpoint's own processor cuts them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator

_LARGEST_ASPECT = 200
_PRACTICE = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "resample": int(Image.Resampling.BICUBIC),
    "rescale_factor": 1 / 255,
}
"""What every Qwen-VL checkpoint's preprocessor_config.json says, where it says it, and this module does."""


class ImageSpec(BaseModel):
    """The constants of a checkpoint's preprocessing: sides in pixels or patches, mean and std of RGB scaled to 0..1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    patch_size: int = Field(default=16, gt=0)
    temporal_patch_size: int = Field(default=2, gt=0)
    merge_size: int = Field(default=2, gt=0)
    min_pixels: int = Field(gt=0)
    max_pixels: int = Field(gt=0)
    mean: tuple[float, float, float]
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat]

    @classmethod
    def from_preprocessor_config(cls, config: dict[str, Any]) -> ImageSpec:
        """From a checkpoint's preprocessor_config.json.

        Its bounds of pixels are size.shortest_edge and size.longest_edge, or min_pixels and max_pixels, which go first.
        Raises ValueError where one is missing or the checkpoint prepares images in another way than this module.
        """
        for name, practice in _PRACTICE.items():
            value = config.get(name)
            if value is not None and not math.isclose(value, practice, rel_tol=1e-6):
                raise ValueError(f"preprocessor_config.json has {name} {value!r}, and only {practice!r} is supported")
        size = config.get("size") or {}
        return cls.model_validate(
            {
                "patch_size": config.get("patch_size"),
                "temporal_patch_size": config.get("temporal_patch_size"),
                "merge_size": config.get("merge_size"),
                "min_pixels": config.get("min_pixels") or size.get("shortest_edge"),
                "max_pixels": config.get("max_pixels") or size.get("longest_edge"),
                "mean": config.get("image_mean"),
                "std": config.get("image_std"),
            }
        )

    @model_validator(mode="after")
    def _check_bounds(self) -> ImageSpec:
        if self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is more than max_pixels {self.max_pixels}")
        return self

    @property
    def unit(self) -> int:
        """Sides are multiples of this many pixels: one token of the language model."""
        return self.patch_size * self.merge_size


@dataclass(frozen=True, eq=False)
class Patches:
    """An image as the vision encoder reads it."""

    pixels: NDArray[np.float32]
    """(rows * columns, 3 * temporal * patch * patch), normalised, in blocks of merge x merge patches."""
    rows: int
    columns: int
    """Patches down and across, before merging."""
    merge_size: int = 2
    """Patches down and across of a token."""

    @property
    def tokens(self) -> int:
        """Tokens of the language model that the image takes, after merging."""
        return self.rows * self.columns // self.merge_size**2


def resized_shape(height: int, width: int, spec: ImageSpec) -> tuple[int, int]:
    """Height and width an image is brought to: near its own, in multiples of a token, within the bounds of pixels.

    Source: smart_resize of transformers' image_processing_qwen2_vl. Raises ValueError for an empty image and for one
    with a side more than 200 times the other.
    """
    if min(height, width) < 1:
        raise ValueError(f"an image of {width} x {height} pixels is empty")
    if max(height, width) > _LARGEST_ASPECT * min(height, width):
        raise ValueError(
            f"an image of {width} x {height} pixels is too narrow: one side is over {_LARGEST_ASPECT} times the other"
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
    """Resize, normalise and cut an RGB image, uint8 (height, width, 3).

    Source: Qwen2VLImageProcessorPil of transformers. Raises ValueError for another kind of array, and as resized_shape
    does.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"an image is uint8 (height, width, 3), not {image.dtype} {image.shape}")
    shape = resized_shape(image.shape[0], image.shape[1], spec)
    if image.shape[:2] != shape:
        # The models were trained on Pillow's bicubic filter, which OpenCV's is not.
        picture = Image.fromarray(image).resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
        image = np.asarray(picture)
    size, merge = spec.patch_size, spec.merge_size
    rows, columns = shape[0] // size, shape[1] // size
    # Bytes are put in order first: a quarter of what there would be to move as floats.
    blocks = image.reshape(rows // merge, merge, size, columns // merge, merge, size, 3)
    ordered = np.ascontiguousarray(blocks.transpose(6, 0, 3, 1, 4, 2, 5)).reshape(3, rows * columns, size * size)
    pixels = np.empty((rows * columns, 3, spec.temporal_patch_size, size * size), np.float32)
    for channel, levels in enumerate(_levels(spec)):
        # A still image stands for all frames of a patch.
        pixels[:, channel] = cv2.LUT(ordered[channel], levels)[:, None]
    return Patches(pixels.reshape(rows * columns, -1), rows, columns, merge)


def _levels(spec: ImageSpec) -> NDArray[np.float32]:
    """What every byte of a channel becomes, (3, 256), rounded step by step as the checkpoint's processor does."""
    scaled = (np.arange(256) * (1 / 255)).astype(np.float32)
    mean, std = (np.array(values, np.float32)[:, None] for values in (spec.mean, spec.std))
    return (scaled - mean) / std


def picture_of(patches: Patches, spec: ImageSpec) -> NDArray[np.float32]:
    """The resized picture, float32 (height, width, 3) of 0 to 255, that patches were cut from."""
    size, merge = spec.patch_size, spec.merge_size
    first = patches.pixels.reshape(-1, 3, spec.temporal_patch_size, size * size)[:, :, 0]
    mean, std = (np.array(values, np.float32)[:, None] for values in (spec.mean, spec.std))
    shape = (patches.rows // merge, patches.columns // merge, merge, merge, 3, size, size)
    blocks = ((first * std + mean) * 255).reshape(shape).transpose(0, 2, 5, 1, 3, 6, 4)
    return np.ascontiguousarray(blocks).reshape(patches.rows * size, patches.columns * size, 3)
