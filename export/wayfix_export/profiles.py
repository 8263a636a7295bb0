"""Which shapes a TensorRT engine must take: smallest, usual and largest of every free dimension."""

from __future__ import annotations

import math

from wayfix.policy.engine.images import ImageSpec
from wayfix.views.view import ImageSizes
from wayfix_export.checkpoint import ModelShape

Profiles = dict[str, dict[str, tuple[int, int, int]]]

PREFILL_CHUNK = 512
"""Most new tokens a run."""

EPISODE_TOKENS = 8192
"""Most tokens of an episode."""

_LARGEST_ASPECT = 200
"""Of an image: what is narrower the runtime refuses."""


def profiles_of(shape: ModelShape, spec: ImageSpec, sizes: ImageSizes) -> Profiles:
    """By graph and dimension.

    Images are never larger than square ones of the long sides asked for, but for those that grow to the least pixels.
    """
    unit = spec.patch_size * spec.merge_size
    longest = max(sizes.overview, sizes.zoom, sizes.oblique)

    def patches(side: int) -> int:
        return (-(-side // unit) * spec.merge_size) ** 2

    least = max(spec.merge_size**2, spec.min_pixels // spec.patch_size**2)
    # The narrowest image that is read, brought to the least pixels: the sides rounded up then add the most.
    across = math.sqrt(spec.min_pixels / _LARGEST_ASPECT)
    grown = int((across + unit) * (across * _LARGEST_ASPECT + unit) / spec.patch_size**2)
    largest = max(patches(longest), grown)
    most = min(EPISODE_TOKENS, shape.text_config.max_position_embeddings)
    return {
        "vision": {"patches": (least, max(least, patches(sizes.zoom)), largest)},
        "embedding": {"new": (1, PREFILL_CHUNK, PREFILL_CHUNK)},
        "decoder": {
            "new": (1, PREFILL_CHUNK, PREFILL_CHUNK),
            "logits": (1, 1, PREFILL_CHUNK),
            "past": (0, most // 4, most - PREFILL_CHUNK),
            "all": (1, most // 4 + PREFILL_CHUNK, most),
        },
    }
