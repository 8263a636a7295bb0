"""A box means the same pixels for engine and checkpoint, and a preparation for which it does not is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch")
pytest.importorskip("transformers")

from wayfix.policy.engine.chat import Chat
from wayfix.policy.engine.images import ImageSpec, Patches, make_patches, picture_of
from wayfix.policy.engine.manifest import Precisions
from wayfix_export import boxes
from wayfix_export.boxes import ASPECTS, LONG_SIDES, box_conformance, marked_image, units_off
from wayfix_export.checkpoint import Checkpoint
from wayfix_export.checks import BOX_UNITS, Check
from wayfix_export.reference import Reference, ReferencePatches
from wayfix_export.runner import GraphRunner

Image = NDArray[np.uint8]
FP32 = Precisions(vision="fp32", embedding="fp32", decoder="fp32")
aspects = pytest.mark.parametrize("aspect", [1 / 4, 0.75, 1.0, 16 / 9, 3.0])


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def cropped(image: Image) -> Image:
    """Without a margin of 2 % on each side."""
    y, x = (max(1, round(0.02 * extent)) for extent in image.shape[:2])
    return np.ascontiguousarray(image[y:-y, x:-x])


def padded(image: Image) -> Image:
    """With grey at the right and below, to a square and 5 % more."""
    side = round(1.05 * max(image.shape[:2]))
    whole = np.full((side, side, 3), 96, np.uint8)
    whole[: image.shape[0], : image.shape[1]] = image
    return whole


def shifted(image: Image) -> Image:
    return np.roll(image, round(0.01 * image.shape[1]), axis=1)


class TestMark:
    @aspects
    @pytest.mark.parametrize("side", LONG_SIDES)
    def test_an_image_has_the_aspect_and_a_mark_where_it_is_said_to_be(self, aspect: float, side: int) -> None:
        image, (left, top, right, bottom) = marked_image(aspect, side, rng())
        height, width = image.shape[:2]
        assert max(height, width) == side and width / height == pytest.approx(aspect, rel=0.02)
        rows, columns = np.nonzero(image[:, :, 0] == image.max())
        assert [left, right] == pytest.approx([columns.min() / width * 1000, (columns.max() + 1) / width * 1000])
        assert [top, bottom] == pytest.approx([rows.min() / height * 1000, (rows.max() + 1) / height * 1000])

    def test_no_two_are_alike(self) -> None:
        source = rng()
        assert marked_image(1.0, 448, source)[1] != marked_image(1.0, 448, source)[1]

    @aspects
    def test_it_is_found_where_it_is(self, aspect: float) -> None:
        image, edges = marked_image(aspect, 600, rng())
        assert units_off(image.astype(np.float32), edges) < 0.01

    @aspects
    @pytest.mark.parametrize("size", [(320, 256), (96, 512), (777, 801)])
    def test_it_is_found_at_any_size_that_the_image_is_brought_to(self, aspect: float, size: tuple[int, int]) -> None:
        image, edges = marked_image(aspect, 600, rng())
        resized = PIL.Image.fromarray(image).resize(size, PIL.Image.Resampling.BICUBIC)
        assert units_off(np.asarray(resized, np.float32), edges) < BOX_UNITS

    @aspects
    def test_a_shift_is_told_in_units(self, aspect: float) -> None:
        image, edges = marked_image(aspect, 600, rng())
        pixels = round(0.01 * image.shape[1])
        for way in (-pixels, pixels):
            moved = np.roll(image, way, axis=1).astype(np.float32)
            assert units_off(moved, edges) == pytest.approx(pixels / image.shape[1] * 1000, abs=0.1)
        assert pixels / image.shape[1] * 1000 == pytest.approx(10, abs=3.5)

    @aspects
    def test_so_is_a_shift_downwards(self, aspect: float) -> None:
        image, edges = marked_image(aspect, 600, rng())
        moved = np.roll(image, 3, axis=0).astype(np.float32)
        assert units_off(moved, edges) == pytest.approx(3 / image.shape[0] * 1000, abs=0.1)

    @aspects
    @pytest.mark.parametrize("change", [cropped, padded, shifted, np.flipud, np.fliplr])
    def test_what_a_preparation_must_not_do_is_seen(self, aspect: float, change: Callable[[Image], Image]) -> None:
        image, edges = marked_image(aspect, 600, rng())
        assert units_off(change(image).astype(np.float32), edges) > 3 * BOX_UNITS

    @aspects
    @pytest.mark.parametrize("side", LONG_SIDES)
    def test_the_engines_own_preparation_keeps_it(self, aspect: float, side: int, spec: ImageSpec) -> None:
        image, edges = marked_image(aspect, side, rng())
        assert units_off(picture_of(make_patches(image, spec), spec), edges) < BOX_UNITS


class _Otherwise:
    """A checkpoint whose processor does something more to each image."""

    def __init__(self, reference: Reference, change: Callable[[Image], Image]) -> None:
        self._reference, self._change = reference, change

    def patches(self, image: Image) -> ReferencePatches:
        return self._reference.patches(self._change(image))

    def logits(self, *what: Any) -> NDArray[np.float32]:
        return self._reference.logits(*what)


class TestConformance:
    def failed(self, checks: list[Check]) -> set[str]:
        assert [check.name for check in checks] == ["boxes, engine", "boxes, checkpoint", "forced boxes"]
        return {check.name for check in checks if not check.passed}

    @pytest.mark.slow
    def test_all_aspects_and_resolutions_pass(
        self, reference: Reference, runner: Callable[..., GraphRunner], chat: Chat, spec: ImageSpec
    ) -> None:
        checks = box_conformance(reference, runner("cpu", "fp32"), chat, spec, FP32)
        assert self.failed(checks) == set()
        assert f"{len(ASPECTS)} aspect ratios at {len(LONG_SIDES)} resolutions" in checks[0].note
        assert len(ASPECTS) >= 12 and len(LONG_SIDES) >= 5

    @pytest.mark.parametrize(("flavour", "precision"), [("cpu", "int8"), ("cpu", "int4"), ("trt", "fp16")])
    def test_lower_precisions_pass_within_their_limits(
        self,
        flavour: str,
        precision: Any,
        reference: Reference,
        runner: Callable[..., GraphRunner],
        chat: Chat,
        spec: ImageSpec,
        few_boxes: None,
    ) -> None:
        used = FP32.model_copy(update={"decoder": precision})
        assert self.failed(box_conformance(reference, runner(flavour, precision), chat, spec, used)) == set()

    @pytest.mark.parametrize("change", [cropped, padded, shifted])
    def test_a_processor_that_moves_pixels_is_noticed(
        self,
        change: Callable[[Image], Image],
        reference: Reference,
        runner: Callable[..., GraphRunner],
        chat: Chat,
        spec: ImageSpec,
        few_boxes: None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # What the two answers are worth is of no matter here, and their images may differ in tokens.
        monkeypatch.setattr(boxes, "_forced", lambda *_: 0.0)
        other = _Otherwise(reference, change)
        assert self.failed(box_conformance(other, runner("cpu", "fp32"), chat, spec, FP32)) == {"boxes, checkpoint"}  # type: ignore[arg-type]

    @pytest.mark.parametrize("change", [cropped, padded, shifted])
    def test_an_engine_that_moves_pixels_is_noticed(
        self,
        change: Callable[[Image], Image],
        reference: Reference,
        runner: Callable[..., GraphRunner],
        chat: Chat,
        spec: ImageSpec,
        few_boxes: None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(boxes, "_forced", lambda *_: 0.0)

        def otherwise(image: Image, spec: ImageSpec) -> Patches:
            return make_patches(change(image), spec)

        monkeypatch.setattr(boxes, "make_patches", otherwise)
        assert self.failed(box_conformance(reference, runner("cpu", "fp32"), chat, spec, FP32)) == {"boxes, engine"}

    def test_an_engine_that_holds_other_answers_likely_is_noticed(
        self,
        reference: Reference,
        other_checkpoint: Checkpoint,
        chat: Chat,
        spec: ImageSpec,
        few_boxes: None,
        other_graphs: Any,
    ) -> None:
        runner = GraphRunner(other_graphs, other_checkpoint, threads=1)
        assert self.failed(box_conformance(reference, runner, chat, spec, FP32)) == {"forced boxes"}
