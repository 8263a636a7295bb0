"""An image becomes the patches that a checkpoint's own processor would make of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError

from wayfix.policy.engine.images import ImageSpec, Patches, make_patches, picture_of, resized_shape

SPEC = ImageSpec(min_pixels=64**2, max_pixels=192**2, mean=(0.5, 0.4, 0.3), std=(0.5, 0.6, 0.7))
UNIT = 32
QWEN3_VL = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "Qwen3VLProcessor",
    "image_processor_type": "Qwen2VLImageProcessorFast",
}

sides = st.integers(1, 1500)
small_sides = st.integers(1, 260)
seeds = st.integers(0, 2**32 - 1)


def readable(height: int, width: int) -> bool:
    return max(height, width) <= 200 * min(height, width)


def noise(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def photo(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Soft shapes under a little noise, as pictures have them."""
    soft = Image.fromarray(noise(5, 5, seed)).resize((width, height), Image.Resampling.BICUBIC)
    grain = np.random.default_rng(seed).normal(0, 6, (height, width, 3))
    return np.clip(np.asarray(soft) + grain, 0, 255).astype(np.uint8)


def values(patches: Patches, spec: ImageSpec = SPEC) -> NDArray[np.float32]:
    """By patch, channel, frame, line and place in the line."""
    return patches.pixels.reshape(-1, 3, spec.temporal_patch_size, spec.patch_size, spec.patch_size)


class TestSpec:
    def test_it_is_read_from_the_config_of_a_checkpoint(self) -> None:
        spec = ImageSpec.from_preprocessor_config(QWEN3_VL)
        assert (spec.min_pixels, spec.max_pixels) == (256**2, 4096**2)
        assert (spec.patch_size, spec.temporal_patch_size, spec.merge_size, spec.unit) == (16, 2, 2, 32)
        assert spec.mean == spec.std == (0.5, 0.5, 0.5)

    def test_it_is_read_from_older_configs(self) -> None:
        old = {name: value for name, value in QWEN3_VL.items() if name != "size"}
        spec = ImageSpec.from_preprocessor_config({**old, "min_pixels": 3136, "max_pixels": 12845056})
        assert (spec.min_pixels, spec.max_pixels) == (3136, 12845056)

    def test_min_pixels_and_max_pixels_go_before_size(self) -> None:
        spec = ImageSpec.from_preprocessor_config({**QWEN3_VL, "min_pixels": 3136, "max_pixels": None})
        assert (spec.min_pixels, spec.max_pixels) == (3136, 16777216)

    @pytest.mark.parametrize("name", ["patch_size", "merge_size", "temporal_patch_size", "image_mean", "image_std"])
    def test_what_is_missing_is_named(self, name: str) -> None:
        rest = {key: value for key, value in QWEN3_VL.items() if key != name}
        with pytest.raises(ValueError, match=name.removeprefix("image_")):
            ImageSpec.from_preprocessor_config(rest)

    def test_bounds_of_pixels_are_needed(self) -> None:
        with pytest.raises(ValueError, match="min_pixels"):
            ImageSpec.from_preprocessor_config({**QWEN3_VL, "size": None})

    def test_what_checkpoints_say_besides_is_accepted(self) -> None:
        steps = {"do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True}
        config = {**QWEN3_VL, **steps, "resample": 3, "rescale_factor": 0.00392156862745098}
        assert ImageSpec.from_preprocessor_config(config) == ImageSpec.from_preprocessor_config(QWEN3_VL)

    @pytest.mark.parametrize(
        ("name", "value"), [("do_resize", False), ("do_normalize", False), ("resample", 2), ("rescale_factor", 1.0)]
    )
    def test_another_preparation_is_refused(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=name):
            ImageSpec.from_preprocessor_config({**QWEN3_VL, name: value})

    @pytest.mark.parametrize(
        "change", [{"patch_size": 0}, {"std": (0.5, 0.0, 0.5)}, {"min_pixels": 192**2 + 1}, {"colour": "RGB"}]
    )
    def test_impossible_constants_are_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            ImageSpec.model_validate({**SPEC.model_dump(), **change})

    def test_it_cannot_be_changed(self) -> None:
        with pytest.raises(ValidationError):
            SPEC.patch_size = 14


class TestResizedShape:
    @pytest.mark.parametrize(
        ("given_shape", "shape"),
        [
            ((128, 160), (128, 160)),  # right as it is
            ((120, 170), (128, 160)),  # the nearest multiples
            ((112, 80), (128, 64)),  # halves go to the even multiple, as Python's round has it
            ((10, 20), (64, 96)),  # grown to min_pixels
            ((1000, 1000), (192, 192)),  # shrunk to max_pixels
            ((1, 200), (32, 928)),
            ((3200, 17), (2624, 32)),  # no side goes below a token, even over max_pixels
            ((3000, 15), (928, 32)),  # a side nearer to none than to one token: as if the image were too small
        ],
    )
    def test_examples(self, given_shape: tuple[int, int], shape: tuple[int, int]) -> None:
        assert resized_shape(*given_shape, SPEC) == shape

    @given(sides, sides)
    def test_sides_are_whole_tokens(self, height: int, width: int) -> None:
        assume(readable(height, width))
        high, wide = resized_shape(height, width, SPEC)
        assert high % UNIT == wide % UNIT == 0
        assert min(high, wide) >= UNIT

    @given(sides, sides)
    def test_pixels_are_within_the_bounds(self, height: int, width: int) -> None:
        assume(readable(height, width))
        high, wide = resized_shape(height, width, SPEC)
        assert high * wide >= SPEC.min_pixels
        assert high * wide <= SPEC.max_pixels or min(high, wide) == UNIT

    @given(sides, sides)
    def test_the_aspect_ratio_is_kept_to_a_token(self, height: int, width: int) -> None:
        assume(readable(height, width))
        shape = resized_shape(height, width, SPEC)
        scale = math.sqrt(math.prod(shape) / (height * width))
        assert abs(min(shape) - scale * min(height, width)) <= UNIT

    @given(sides, sides)
    def test_a_turned_image_has_the_turned_shape(self, height: int, width: int) -> None:
        assume(readable(height, width))
        assert resized_shape(width, height, SPEC) == resized_shape(height, width, SPEC)[::-1]

    @pytest.mark.parametrize("tokens", [(2, 2), (1, 4), (4, 1), (3, 5), (6, 6), (36, 1), (2, 18)])
    def test_a_shape_that_fits_is_kept(self, tokens: tuple[int, int]) -> None:
        shape = tokens[0] * UNIT, tokens[1] * UNIT
        assert resized_shape(*shape, SPEC) == shape

    def test_a_side_200_times_the_other_is_the_limit(self) -> None:
        assert resized_shape(1, 200, SPEC)
        with pytest.raises(ValueError, match="201 x 1 pixels is too narrow"):
            resized_shape(1, 201, SPEC)


class TestMakePatches:
    def test_patches_of_a_token_follow_each_other(self) -> None:
        image = np.zeros((64, 96, 3), np.uint8)  # 4 x 6 patches, 2 x 3 tokens
        image[32:48, 48:64] = 255  # row 2, column 3: in token 4 (1, 1), its second patch
        patches = make_patches(image, SPEC)
        assert (patches.rows, patches.columns, patches.tokens) == (4, 6, 6)
        assert patches.pixels.shape == (24, 3 * 2 * 16 * 16)
        (white,) = np.flatnonzero((values(patches) > 0).all(axis=(1, 2, 3, 4)))
        assert white == 4 * 4 + 1

    def test_a_patch_holds_a_channel_after_the_other_line_by_line(self) -> None:
        image = noise(64, 96)
        first = values(make_patches(image, SPEC))[0]
        expected = (image[:16, :16] / 255 - SPEC.mean) / SPEC.std
        np.testing.assert_allclose(first[:, 0], expected.transpose(2, 0, 1), atol=1e-6)

    def test_a_still_image_fills_all_frames(self) -> None:
        three = SPEC.model_copy(update={"temporal_patch_size": 3})
        frames = values(make_patches(noise(70, 90), three), three)
        assert (frames == frames[:, :, :1]).all()

    def test_pixels_are_ready_for_the_graph(self) -> None:
        pixels = make_patches(noise(70, 90), SPEC).pixels
        assert pixels.dtype == np.float32
        assert pixels.flags.c_contiguous

    @given(small_sides, small_sides, seeds)
    def test_the_picture_comes_back(self, height: int, width: int, seed: int) -> None:
        assume(readable(height, width))
        image = noise(height, width, seed)
        high, wide = resized_shape(height, width, SPEC)
        resized = np.asarray(Image.fromarray(image).resize((wide, high), Image.Resampling.BICUBIC))
        picture = picture_of(make_patches(image, SPEC), SPEC)
        assert picture.dtype == np.float32
        assert picture.shape == (high, wide, 3)
        np.testing.assert_allclose(picture, resized, atol=1e-3)

    def test_an_image_that_fits_is_not_touched(self) -> None:
        image = noise(96, 160)
        np.testing.assert_allclose(picture_of(make_patches(image, SPEC), SPEC), image, atol=1e-3)

    @pytest.mark.parametrize(("patch_size", "merge_size", "temporal"), [(16, 1, 2), (14, 2, 2), (8, 3, 1)])
    def test_other_cuts(self, patch_size: int, merge_size: int, temporal: int) -> None:
        cut = {"patch_size": patch_size, "merge_size": merge_size, "temporal_patch_size": temporal}
        spec = SPEC.model_copy(update=cut)
        image = noise(4 * spec.unit, 5 * spec.unit)
        patches = make_patches(image, spec)
        assert patches.tokens == 20
        np.testing.assert_allclose(picture_of(patches, spec), image, atol=1e-3)

    @pytest.mark.parametrize("shape", [(96, 160), (90, 170)])
    def test_memory_may_be_laid_out_in_any_way(self, shape: tuple[int, int]) -> None:
        view = noise(*shape)[::-1, :, ::-1]
        view.flags.writeable = False
        np.testing.assert_array_equal(make_patches(view, SPEC).pixels, make_patches(view.copy(), SPEC).pixels)

    @pytest.mark.parametrize(
        ("image", "reason"),
        [
            (np.zeros((64, 64, 3), np.float32), "float32"),
            (np.zeros((64, 64), np.uint8), r"\(64, 64\)"),
            (np.zeros((64, 64, 4), np.uint8), r"\(64, 64, 4\)"),
            (np.zeros((3, 64, 64), np.uint8), r"\(3, 64, 64\)"),
            (np.zeros((1, 64, 64, 3), np.uint8), r"\(1, 64, 64, 3\)"),
            (np.zeros((0, 64, 3), np.uint8), "64 x 0 pixels is empty"),
            (np.zeros((64, 0, 3), np.uint8), "0 x 64 pixels is empty"),
            (np.zeros((402, 2, 3), np.uint8), "2 x 402 pixels is too narrow"),
        ],
    )
    def test_what_is_not_an_image_is_refused(self, image: Any, reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            make_patches(image, SPEC)


# ---- against the processor of transformers

Processor = Callable[[NDArray[np.uint8], ImageSpec], tuple[NDArray[np.float32], tuple[int, int]]]

ASPECTS = (
    (1, 1), (4, 3), (3, 4), (3, 2), (2, 3), (16, 9), (9, 16), (2, 1), (1, 2), (21, 9), (9, 21), (5, 1), (1, 5), (30, 1),
    (1, 30),
)  # fmt: skip
"""Width and height."""
SIDES = (30, 64, 110, 187, 400)
"""Of the square with as many pixels: below min_pixels, within the bounds three times, above max_pixels."""


@pytest.fixture(scope="module")
def processor() -> Processor:
    """Patches and grid of an image as transformers makes them."""
    made = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")

    def process(image: NDArray[np.uint8], spec: ImageSpec) -> tuple[NDArray[np.float32], tuple[int, int]]:
        theirs = made.Qwen2VLImageProcessorPil(
            size={"shortest_edge": spec.min_pixels, "longest_edge": spec.max_pixels},
            patch_size=spec.patch_size,
            temporal_patch_size=spec.temporal_patch_size,
            merge_size=spec.merge_size,
            image_mean=list(spec.mean),
            image_std=list(spec.std),
        )
        done = theirs(images=[image], return_tensors="np")
        _, rows, columns = done["image_grid_thw"][0].tolist()
        return done["pixel_values"], (rows, columns)

    return process


def assert_alike(image: NDArray[np.uint8], spec: ImageSpec, processor: Processor) -> None:
    ours, (theirs, grid) = make_patches(image, spec), processor(image, spec)
    assert (ours.rows, ours.columns) == grid
    np.testing.assert_allclose(ours.pixels, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("aspect", ASPECTS, ids=lambda aspect: f"{aspect[0]}:{aspect[1]}")
def test_patches_are_those_of_transformers(aspect: tuple[int, int], side: int, processor: Processor) -> None:
    stretch = math.sqrt(aspect[0] / aspect[1])
    height, width = max(1, round(side / stretch)), max(1, round(side * stretch))
    assert_alike(photo(height, width, seed=side), SPEC, processor)


@pytest.mark.parametrize("shape", [(64, 96), (131, 77)])
@pytest.mark.parametrize(("patch_size", "merge_size", "temporal"), [(14, 2, 2), (16, 1, 1), (8, 3, 3)])
def test_other_cuts_are_those_of_transformers(
    shape: tuple[int, int], patch_size: int, merge_size: int, temporal: int, processor: Processor
) -> None:
    cut = {"patch_size": patch_size, "merge_size": merge_size, "temporal_patch_size": temporal}
    assert_alike(noise(*shape), SPEC.model_copy(update=cut), processor)


def test_with_the_constants_of_qwen3_vl(processor: Processor) -> None:
    spec = ImageSpec.from_preprocessor_config(QWEN3_VL)
    for shape in [(200, 300), (256, 256), (333, 517)]:
        assert_alike(photo(*shape), spec, processor)
