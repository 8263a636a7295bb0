"""What a TensorRT engine is built for holds every shape that an episode can bring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wayfix.policy.engine.images import ImageSpec, resized_shape
from wayfix.views.view import ImageSizes
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.profiles import EPISODE_TOKENS, PREFILL_CHUNK, profiles_of

sides = st.integers(32, 2048)


@given(longest=sides, other=sides, share=st.floats(0.005, 1), turned=st.booleans())
def test_every_image_of_these_sizes_fits(
    checkpoint: Checkpoint, spec: ImageSpec, longest: int, other: int, share: float, turned: bool
) -> None:
    shorter = max(1, round(longest * share))
    assume(longest <= 200 * shorter)
    shape = (longest, shorter) if turned else (shorter, longest)
    high, wide = resized_shape(*shape, spec)
    least, _, most = profiles_of(checkpoint.shape, spec, ImageSizes(other, longest, other))["vision"]["patches"]
    assert least <= high * wide // spec.patch_size**2 <= most


@given(sides, sides, sides)
def test_what_is_usual_lies_between_least_and_most(
    checkpoint: Checkpoint, spec: ImageSpec, overview: int, zoom: int, oblique: int
) -> None:
    for dimensions in profiles_of(checkpoint.shape, spec, ImageSizes(overview, zoom, oblique)).values():
        for least, usual, most in dimensions.values():
            assert 0 <= least <= usual <= most


def test_an_episode_fits_token_by_token_and_in_chunks(checkpoint: Checkpoint, spec: ImageSpec) -> None:
    decoder = profiles_of(checkpoint.shape, spec, ImageSizes())["decoder"]
    assert decoder["new"][0] == decoder["logits"][0] == 1
    assert decoder["new"][2] == decoder["logits"][2] == PREFILL_CHUNK
    assert decoder["past"][0] == 0
    assert decoder["past"][2] + PREFILL_CHUNK == decoder["all"][2] == EPISODE_TOKENS


def test_no_more_tokens_than_the_model_takes(checkpoint: Checkpoint, spec: ImageSpec) -> None:
    text = checkpoint.shape.text_config.model_copy(update={"max_position_embeddings": 4096})
    short = checkpoint.shape.model_copy(update={"text_config": text})
    assert profiles_of(short, spec, ImageSizes())["decoder"]["all"][2] == 4096


@pytest.mark.parametrize("part", ["vision", "embedding", "decoder"])
def test_every_free_dimension_of_a_graph_has_a_profile(
    part: str, checkpoint: Checkpoint, spec: ImageSpec, graphs: Callable[..., Path]
) -> None:
    graph = onnx.load(graphs("trt", "fp32") / f"{part}.onnx", load_external_data=False).graph
    free = {dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param}
    assert free == set(profiles_of(checkpoint.shape, spec, ImageSizes())[part])
