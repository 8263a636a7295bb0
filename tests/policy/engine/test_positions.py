"""Patches and tokens have the positions that Qwen3-VL gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from wayfix.policy.engine.images import ImageSpec, make_patches, picture_of
from wayfix.policy.engine.positions import Rotary, token_positions, vision_positions, vision_rotary

TEXT, PAD = 7, 99
MERGE, SIDE = 2, 48
Grid = tuple[int, int]

grids = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(lambda grid: (grid[0] * MERGE, grid[1] * MERGE))
merges = st.integers(1, 3)
parts = st.lists(st.one_of(st.integers(1, 5), grids), max_size=8)
"""Of a conversation: a number of text tokens, or an image."""
Part = int | Grid


def tokens_of(part: Part) -> list[int]:
    return [TEXT] * part if isinstance(part, int) else [PAD] * (part[0] * part[1] // MERGE**2)


def ids_of(conversation: Sequence[Part]) -> NDArray[np.int64]:
    return np.array([token for part in conversation for token in tokens_of(part)], np.int64)


def grids_of(conversation: Sequence[Part]) -> list[Grid]:
    return [part for part in conversation if not isinstance(part, int)]


def positions_of(conversation: Sequence[Part], start: int = 0) -> tuple[NDArray[np.int64], int]:
    return token_positions(ids_of(conversation), grids_of(conversation), PAD, start, MERGE)


class TestVisionPositions:
    def test_patches_of_a_token_follow_each_other(self) -> None:
        order = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
        assert list(map(tuple, vision_positions(2, 4, SIDE, 2).row_column.tolist())) == order

    @given(st.integers(1, 8), st.integers(1, 8), merges)
    def test_every_patch_has_its_place(self, down: int, across: int, merge: int) -> None:
        rows, columns = down * merge, across * merge
        places = vision_positions(rows, columns, SIDE, merge).row_column
        assert sorted(map(tuple, places.tolist())) == list(np.ndindex(rows, columns))

    def test_places_are_in_the_order_of_make_patches(self) -> None:
        spec = ImageSpec(min_pixels=1, max_pixels=10**6, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        image = np.zeros((6 * 16, 8 * 16, 3), np.uint8)
        image[:, :, 0] = np.arange(6 * 16)[:, None] // 16
        image[:, :, 1] = np.arange(8 * 16)[None, :] // 16
        patches = make_patches(image, spec)
        np.testing.assert_allclose(picture_of(patches, spec), image, atol=1e-3)
        colours = (patches.pixels.reshape(-1, 3, 2 * 16 * 16).mean(axis=2) * 0.5 + 0.5) * 255
        np.testing.assert_allclose(vision_positions(6, 8, SIDE, 2).row_column, colours[:, :2], atol=1e-3)

    def test_corners_are_aligned(self) -> None:
        made = vision_positions(4, 6, SIDE, 2)
        corners = {(0, 0): 0, (0, 5): SIDE - 1, (3, 0): SIDE * (SIDE - 1), (3, 5): SIDE**2 - 1}
        for place, entry in corners.items():
            (patch,) = np.flatnonzero((made.row_column == place).all(axis=1))
            assert made.weights[patch].tolist() == [1, 0, 0, 0]
            assert made.indices[patch, 0] == entry

    @given(st.integers(1, 30), st.integers(1, 30), st.integers(2, 48), merges)
    def test_a_slope_stays_a_slope(self, down: int, across: int, side: int, merge: int) -> None:
        rows, columns = down * merge, across * merge
        made = vision_positions(rows, columns, side, merge)
        table = np.add.outer(np.arange(side) * 3.0, np.arange(side) * 5.0).ravel()
        row, column = made.row_column.T
        slope = (3 * row / max(rows - 1, 1) + 5 * column / max(columns - 1, 1)) * (side - 1)
        np.testing.assert_allclose((table[made.indices] * made.weights).sum(axis=1), slope, atol=1e-3)
        np.testing.assert_allclose(made.weights.sum(axis=1), 1, atol=1e-6)

    def test_types_are_those_of_the_graph(self) -> None:
        made = vision_positions(4, 6, SIDE, 2)
        assert (made.indices.dtype, made.weights.dtype, made.row_column.dtype) == (np.int64, np.float32, np.int64)
        assert made.indices.shape == made.weights.shape == (24, 4)

    def test_a_size_is_worked_out_once_and_nobody_can_change_it(self) -> None:
        made = vision_positions(4, 6, SIDE, 2)
        assert vision_positions(4, 6, SIDE, 2) is made
        for array in (made.indices, made.weights, made.row_column, *vision_rotary(4, 6, 2, 32, 1e4)):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


class TestTokenPositions:
    def test_text_counts_up_on_all_axes(self) -> None:
        positions, following = positions_of([4], start=10)
        assert positions.tolist() == [[10, 11, 12, 13]] * 3
        assert following == 14

    def test_an_image_spreads_over_rows_and_columns(self) -> None:
        positions, following = positions_of([2, (4, 6), 1], start=5)
        assert positions.tolist() == [
            [5, 6, 7, 7, 7, 7, 7, 7, 10],  # time
            [5, 6, 7, 7, 7, 8, 8, 8, 10],  # row
            [5, 6, 7, 8, 9, 7, 8, 9, 10],  # column
        ]
        assert following == 11

    def test_nothing_new_leaves_the_position(self) -> None:
        positions, following = positions_of([], start=3)
        assert positions.shape == (3, 0)
        assert following == 3

    def test_images_may_touch(self) -> None:
        positions, following = positions_of([(2, 4), (4, 2)])
        assert positions.tolist() == [[0, 0, 2, 2], [0, 0, 2, 3], [0, 1, 2, 2]]
        assert following == 4

    @given(parts, st.integers(0, 1000))
    def test_what_follows_goes_on_behind_the_furthest(self, conversation: list[Part], start: int) -> None:
        positions, following = positions_of(conversation, start)
        assert positions.dtype == np.int64
        assert positions.shape == (3, len(ids_of(conversation)))
        assert following == max(positions.max(initial=start - 1) + 1, start)

    @given(parts, grids, st.integers(0, 1000))
    def test_text_behind_an_image_goes_on_at_its_furthest(
        self, conversation: list[Part], grid: Grid, start: int
    ) -> None:
        positions, _ = positions_of([*conversation, grid, 2], start)
        furthest = positions[:, :-2].max()
        assert positions[:, -2:].tolist() == [[furthest + 1, furthest + 2]] * 3

    @given(parts, st.integers(0, 1000), st.data())
    def test_a_conversation_may_be_split_anywhere_outside_an_image(
        self, conversation: list[Part], start: int, data: st.DataObject
    ) -> None:
        # Every text token is a part of its own, so that a cut may go through a text.
        single: list[Part] = []
        for part in conversation:
            single += [1] * part if isinstance(part, int) else [part]
        cut = data.draw(st.integers(0, len(single)))
        whole, following = positions_of(single, start)
        first, between = positions_of(single[:cut], start)
        second, at_the_end = positions_of(single[cut:], between)
        np.testing.assert_array_equal(np.concatenate([first, second], axis=1), whole)
        assert at_the_end == following

    @given(parts, st.integers(0, 1000))
    def test_a_later_start_moves_all_positions(self, conversation: list[Part], start: int) -> None:
        positions, following = positions_of(conversation)
        moved, moved_following = positions_of(conversation, start)
        np.testing.assert_array_equal(moved, positions + start)
        assert moved_following == following + start

    @pytest.mark.parametrize(
        ("ids", "images", "reason"),
        [
            ([TEXT, PAD, PAD, PAD], [(4, 4)], "image 1 of 1 does not have 4 pad tokens in a row"),
            ([PAD, PAD, TEXT, PAD, PAD], [(4, 4)], "image 1 of 1"),
            ([PAD] * 4, [(4, 4), (2, 2)], "image 2 of 2 does not have 1 pad tokens"),
            ([TEXT, TEXT], [(2, 2)], "image 1 of 1"),
            ([PAD] * 4 + [TEXT, PAD], [(4, 4)], "1 pad tokens belong to no image"),
            ([PAD, TEXT], [], "1 pad tokens belong to no image"),
            ([PAD], [(0, 2), (2, 2)], "image 1 of 2 does not have 0 pad tokens"),
        ],
    )
    def test_pads_that_do_not_match_the_grids_are_refused(
        self, ids: list[int], images: list[Grid], reason: str
    ) -> None:
        with pytest.raises(ValueError, match=reason):
            token_positions(np.array(ids), images, PAD, 0, MERGE)


SECTION = (12, 10, 10)


class TestRotary:
    def test_text_turns_as_on_one_axis(self) -> None:
        cos, sin = Rotary(64, 1e4, SECTION).rows(np.tile(np.arange(50), (3, 1)))
        angles = np.outer(np.arange(50), 1e4 ** -(np.arange(32) / 32))
        np.testing.assert_allclose(cos, np.cos(angles), atol=1e-5)
        np.testing.assert_allclose(sin, np.sin(angles), atol=1e-5)

    @pytest.mark.parametrize(
        ("interleaved", "axes"),
        [(True, [0, 1, 2] * 10 + [0, 0]), (False, [0] * 12 + [1] * 10 + [2] * 10)],
    )
    @pytest.mark.parametrize("axis", range(3))
    def test_a_frequency_turns_by_one_axis(self, axis: int, interleaved: bool, axes: list[int]) -> None:
        positions = np.zeros((3, 1), np.int64)
        positions[axis] = 1
        _, sin = Rotary(64, 1e4, SECTION, interleaved).rows(positions)
        assert np.flatnonzero(sin[0]).tolist() == [index for index, by in enumerate(axes) if by == axis]

    def test_rows_are_ready_for_the_graph(self) -> None:
        for table in Rotary(64, 1e4, SECTION).rows(positions_of([3, (4, 6), 2])[0]):
            assert table.shape == (11, 32)
            assert table.dtype == np.float32
            assert table.flags.c_contiguous

    def test_sections_make_up_the_frequencies(self) -> None:
        with pytest.raises(ValueError, match="32 frequencies"):
            Rotary(64, 1e4, (12, 10, 9))


# ---- against transformers

GRIDS: tuple[Grid, ...] = ((2, 2), (2, 4), (4, 2), (6, 6), (10, 14), (28, 28), (30, 40), (2, 60), (64, 2), (48, 50))
CONVERSATIONS: tuple[list[Part], ...] = (
    [5],
    [(4, 6)],
    [1, (28, 28), 1],
    [17, (30, 40), 3, (4, 2), 1, (2, 60), 40],
    [2, (6, 6), 9, (6, 6), 2, (64, 2), 4, (2, 2), 30],
)
LONGEST = 8192
"""Positions of the longest conversations."""


@pytest.fixture(scope="module")
def model() -> Any:
    """A Qwen3VLModel of a few random weights."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    text = {
        "vocab_size": 128, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": LONGEST,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e5, "mrope_section": list(SECTION), "mrope_interleaved": True,
        },
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 64, "intermediate_size": 32, "num_heads": 2, "patch_size": 16,
        "spatial_merge_size": MERGE, "out_hidden_size": 32, "num_position_embeddings": SIDE**2,
        "deepstack_visual_indexes": [0],
    }  # fmt: skip
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=PAD)
    return transformers.Qwen3VLModel(config).eval()


@pytest.mark.parametrize("grid", GRIDS)
def test_vision_positions_are_those_of_transformers(grid: Grid, model: Any) -> None:
    import torch
    from transformers import vision_utils

    image, ours = torch.tensor([[1, *grid]]), vision_positions(*grid, SIDE, MERGE)
    indices, weights = vision_utils.get_vision_interpolation_indices_and_weights(
        image, SIDE, mode="bilinear", align_corners=True, spatial_merge_size=MERGE
    )
    np.testing.assert_array_equal(ours.indices, indices.numpy())
    np.testing.assert_allclose(ours.weights, weights.numpy(), rtol=0, atol=1e-6)
    places = vision_utils.get_vision_position_ids(image, MERGE)
    np.testing.assert_array_equal(ours.row_column, places.numpy())


@pytest.mark.parametrize("grid", GRIDS)
def test_vision_rotary_is_that_of_transformers(grid: Grid, model: Any) -> None:
    import torch

    places = torch.tensor(vision_positions(*grid, SIDE, MERGE).row_column)
    theirs = model.visual.rotary_pos_emb(torch.zeros(1), places)
    head_dim = theirs[0].shape[-1]
    for ours, table in zip(vision_rotary(*grid, MERGE, head_dim, 1e4), theirs, strict=True):
        np.testing.assert_allclose(np.tile(ours, 2), table.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=str)
def test_token_positions_are_those_of_transformers(conversation: list[Part], model: Any) -> None:
    import torch

    ids = torch.tensor(ids_of(conversation))[None]
    images = torch.tensor([(1, *grid) for grid in grids_of(conversation)]) if grids_of(conversation) else None
    theirs, offset = model.get_rope_index(ids, (ids == PAD).int(), images)
    ours, following = positions_of(conversation)
    np.testing.assert_array_equal(ours, theirs[:, 0].numpy())
    assert following == ids.shape[1] + offset.item()


def test_rotary_is_that_of_transformers(model: Any) -> None:
    import torch

    generator = np.random.default_rng(0)
    for positions in (np.tile(np.arange(LONGEST), (3, 1)), generator.integers(0, LONGEST, (3, 1000))):
        theirs = model.language_model.rotary_emb(torch.zeros(1), torch.tensor(positions)[:, None])
        for ours, table in zip(Rotary(64, 1e5, SECTION).rows(positions), theirs, strict=True):
            np.testing.assert_allclose(np.tile(ours, 2), table[0].numpy(), rtol=0, atol=1e-6)


def test_rotary_in_sections_is_that_of_qwen2_vl(model: Any) -> None:
    import torch
    from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl

    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    config = qwen2_vl.Qwen2VLTextConfig(hidden_size=256, num_attention_heads=2, rope_parameters=rope)
    positions = np.random.default_rng(0).integers(0, 500, (3, 200))
    theirs = qwen2_vl.Qwen2VLRotaryEmbedding(config)(torch.zeros(1), torch.tensor(positions)[:, None])
    for ours, table in zip(Rotary(128, 1e6, (16, 24, 24), interleaved=False).rows(positions), theirs, strict=True):
        np.testing.assert_allclose(np.tile(ours, 2), table[0].numpy(), rtol=0, atol=1e-6)
